"""Snakemake's executor plugin on submitit: jobs go out as arrays, one query watches them all, nothing is lost.

Snakemake finds it as `snakemake_executor_plugin_submitit` (workflow/plugins/). Each job becomes one element of a Slurm
job array, whose batch step runs Snakemake's own command for that job; the job's rule starts its ranks with srun.
"""
