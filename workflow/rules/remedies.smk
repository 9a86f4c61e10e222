# The loop: diagnose all points, run the remedied ones as points like any other, see what they gave, and again. A round is
# a checkpoint: which points it adds is known once those before it are measured and diagnosed.


def asked():
    """Whether this run is to try remedies. Without, what earlier runs tried is shown and nothing is measured for it."""
    return (
        workflow.dag_settings is not None
        and "remedies" in workflow.dag_settings.targets
    )


def through_round(number):
    """The sweep's points and those of its first rounds, which must be planned for it."""
    for earlier in range(1, number + 1):
        checkpoints.remedy_round.get(sweep=SWEEP.name, round=earlier)
    return [*POINTS, *RUN.remedied(number)]


def measured():
    """All points that tables are made of."""
    return through_round(SWEEP.remedy_rounds) if asked() else [*POINTS, *RUN.remedied()]


checkpoint remedy_round:
    input:
        derived=lambda wildcards: expand(
            f"{ROOT}/derived/{{point}}", point=through_round(int(wildcards.round) - 1)
        ),
        diagnoses=lambda wildcards: expand(
            f"{ROOT}/diagnoses/{{point}}.json",
            point=through_round(int(wildcards.round) - 1),
        ),
    output:
        plan="results/{sweep}/remedies/round{round}.json",
    log:
        "results/{sweep}/logs/remedies/round{round}.log",
    wildcard_constraints:
        round="[1-9][0-9]*",
    conda:
        "../../envs/nightsweep.yaml"
    params:
        results=lambda wildcards: f"results/{wildcards.sweep}",
    shell:
        "python -m analysis.diagnosis.loop {params.results} --round {wildcards.round} > {log} 2>&1"


rule remedies:
    input:
        rules.points.input,
        f"{ROOT}/report.html",
        expand(
            f"{ROOT}/remedies/round{{round}}.json",
            round=range(1, SWEEP.remedy_rounds + 1),
        ),
