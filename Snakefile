# Nightsweep's front door: one YAML sweep in, a report out.
#
#     snakemake --profile profiles/local --configfile config/demo.yaml
#     snakemake figures --profile profiles/local --configfile config/demo.yaml     # from existing tables, no training
#     snakemake points --profile profiles/slurm --configfile config/demo.yaml      # measure only
#     snakemake remedies --profile profiles/local --configfile config/demo.yaml    # and try what the diagnoses advise
#     ... --config preset=small                                                   # a preset of the sweep
from snakemake.utils import min_version

min_version("9.12")


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/points.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/remedies.smk"
include: "workflow/rules/figures.smk"


rule all:
    default_target: True
    input:
        rules.points.input,
        f"results/{SWEEP.name}/report.html",
    localrule: True


onstart:
    RUN.begin(workflow.executor_settings)


onsuccess:
    RUN.conclude()


onerror:
    RUN.summarize()
