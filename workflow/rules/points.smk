# Raw data: one launch a point, or a block of points (jobs/sweep/design.py), on the scheduler.
# A point that fails is a result too: the launch writes its record and ends well.
# The record is flagged `update`, so that Snakemake, started again after a kill, does not delete what is measured.


rule point:
    output:
        record=update("results/{sweep}/points/{point}/record.json"),
    log:
        "results/{sweep}/logs/points/{point}.log",
    priority: lambda wildcards: RUN.priority(wildcards.point)
    conda:
        "../../envs/nightsweep.yaml"
    container:
        None
    resources:
        machine=1,
        nodes=lambda wildcards: RUN.point(wildcards.point).nodes,
        tasks_per_node=lambda wildcards: RUN.point(wildcards.point).tasks_per_node,
        gpus_per_node=lambda wildcards: RUN.point(wildcards.point).gpus_per_node(),
        runtime=lambda wildcards: RUN.minutes(wildcards.point),
    params:
        python=LAUNCHER_PYTHON,
        folders=lambda wildcards: expand(
            f"results/{wildcards.sweep}/points/{{point}}",
            point=RUN.queue(wildcards.point),
        ),
        listed_in=lambda wildcards: listed_in(wildcards.point),
        stall_s=SWEEP.resources.stall_s,
        timeout_s=SWEEP.resources.timeout_min * 60,
    shell:
        "{params.python} -m nightsweep.jobs.launch.launch {params.folders} --sweep {params.listed_in} --stall-s {params.stall_s}"
        " --timeout-s {params.timeout_s} > {log} 2>&1"


rule led_point:
    input:
        leader=lambda wildcards: f"results/{wildcards.sweep}/points/{RUN.leaders[wildcards.point]}/record.json",
    output:
        record=update("results/{sweep}/points/{point}/record.json"),
    log:
        "results/{sweep}/logs/points/{point}.led.log",
    wildcard_constraints:
        point="|".join(RUN.leaders) or "none",
    localrule: True
    conda:
        "../../envs/nightsweep.yaml"
    params:
        python=PYTHON,
        folder=subpath(output.record, parent=True),
        leader=subpath(input.leader, parent=True),
    shell:
        "{params.python} -m nightsweep.jobs.launch.follow {params.folder} --leader {params.leader} > {log} 2>&1"


ruleorder: led_point > point


# Further starts, where what there is does not tell enough: rounds of the sweep's precision.
checkpoint repeat_round:
    input:
        derived=lambda wildcards: derived(repeats=int(wildcards.round) - 1),
    output:
        plan="results/{sweep}/repeats/{precision}/round{round}.json",
    log:
        "results/{sweep}/logs/repeats/{precision}/round{round}.log",
    wildcard_constraints:
        precision="[^/]+",
        round="[1-9][0-9]*",
    localrule: True
    conda:
        "../../envs/nightsweep.yaml"
    params:
        python=PYTHON,
        results=lambda wildcards: f"results/{wildcards.sweep}",
    shell:
        "{params.python} -m nightsweep.analysis.tools.repeats {params.results} --round {wildcards.round} > {log} 2>&1"


rule points:
    input:
        lambda wildcards: expand(
            f"{ROOT}/points/{{point}}/record.json", point=through_repeats()
        ),
    localrule: True
