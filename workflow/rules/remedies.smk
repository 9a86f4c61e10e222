# The loop: diagnose all points, run the remedied ones as points like any other, see what they gave, and again. A round is
# a checkpoint: which points it adds is known once those before it are measured and diagnosed.


checkpoint remedy_round:
    input:
        derived=lambda wildcards: derived(remedies=int(wildcards.round) - 1),
    output:
        plan="results/{sweep}/remedies/round{round}.json",
    log:
        "results/{sweep}/logs/remedies/round{round}.log",
    wildcard_constraints:
        round="[1-9][0-9]*",
    localrule: True
    conda:
        "../../envs/nightsweep.yaml"
    params:
        python=PYTHON,
        results=lambda wildcards: f"results/{wildcards.sweep}",
    shell:
        "{params.python} -m nightsweep.analysis.diagnosis.remedies.round {params.results} --round {wildcards.round} > {log} 2>&1"


rule remedies:
    input:
        rules.points.input,
        f"{ROOT}/report.html",
        expand(
            f"{ROOT}/remedies/round{{round}}.json",
            round=range(1, SWEEP.remedy_rounds + 1),
        ),
    localrule: True
