# Raw data: one launch a point, on the scheduler; all other rules do small work on tables where Snakemake runs.
# A point that fails is a result too: the launch writes its record and ends well.
# The record is flagged `update`, so that Snakemake, started again after a kill, does not delete what is measured.


rule point:
    output:
        record=update("results/{sweep}/points/{point}/record.json"),
    log:
        "results/{sweep}/logs/points/{point}.log",
    conda:
        "../../envs/nightsweep.yaml"
    resources:
        machine=1,
        nodes=lambda wildcards: RUN.point(wildcards.point).nodes,
        tasks_per_node=lambda wildcards: RUN.point(wildcards.point).tasks_per_node,
        gpus_per_node=lambda wildcards: RUN.point(wildcards.point).gpus_per_node(),
        runtime=SWEEP.resources.timeout_min,
    params:
        python=PYTHON,
        folder=subpath(output.record, parent=True),
        listed_in=lambda wildcards: RUN.holder(wildcards.point),
        stall_s=SWEEP.resources.stall_s,
        timeout_s=SWEEP.resources.timeout_min * 60,
    shell:
        "{params.python} -m jobs.launch.launch {params.folder} --sweep {params.listed_in} --stall-s {params.stall_s}"
        " --timeout-s {params.timeout_s} > {log} 2>&1"


rule points:
    input:
        expand(f"{ROOT}/points/{{point}}/record.json", point=POINTS),
    localrule: True
