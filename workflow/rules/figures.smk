# Figures and the report, from tables alone.
FAMILIES = "iteration_time scaling breakdown memory timeline failures loss roofline remedies".split()


rule figure:
    input:
        tables=expand("results/{{sweep}}/tables/{table}.parquet", table=TABLES),
    output:
        png=report(
            "results/{sweep}/figures/{family}.png",
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{family}", "sweep": "{sweep}"},
        ),
        pdf="results/{sweep}/figures/{family}.pdf",
    log:
        "results/{sweep}/logs/figures/{family}.log",
    wildcard_constraints:
        family="|".join(FAMILIES),
    conda:
        "../../envs/nightsweep.yaml"
    params:
        tables=subpath(input[0], parent=True),
        folder=subpath(output.png, parent=True),
    shell:
        "python -m analysis.figures {wildcards.family} --tables {params.tables} --out {params.folder} > {log} 2>&1"


# Which of the paper's families there are, only the tables tell: one that has no points is left out.
rule paper:
    input:
        tables=expand("results/{{sweep}}/tables/{table}.parquet", table=TABLES),
    output:
        folder=report(
            directory("results/{sweep}/figures/paper"),
            patterns=["{family}.png"],
            caption="../report/paper.rst",
            category="Figures of the paper",
            labels={"figure": "{family}", "sweep": "{sweep}"},
        ),
    log:
        "results/{sweep}/logs/figures/paper.log",
    conda:
        "../../envs/nightsweep.yaml"
    params:
        tables=subpath(input[0], parent=True),
    shell:
        "python -m analysis.figures paper --tables {params.tables} --out {output.folder} > {log} 2>&1"


rule figures:
    input:
        expand(f"{ROOT}/figures/{{family}}.png", family=FAMILIES),
        f"{ROOT}/figures/paper",


rule report_page:
    input:
        tables=expand("results/{{sweep}}/tables/{table}.parquet", table=TABLES),
        figures=expand("results/{{sweep}}/figures/{family}.png", family=FAMILIES),
        paper="results/{sweep}/figures/paper",
    output:
        page=report(
            "results/{sweep}/report.html",
            category="Report",
            caption="../report/page.rst",
        ),
    log:
        "results/{sweep}/logs/report.log",
    conda:
        "../../envs/nightsweep.yaml"
    params:
        tables=subpath(input[0], parent=True),
        figures=lambda wildcards, input: Path(input.figures[0]).parent,
        records="results/{sweep}/points",
    shell:
        "python -m analysis.report --tables {params.tables} --figures {params.figures} --records {params.records}"
        " --out {output.page} > {log} 2>&1"
