# Figures and the report, from tables alone.


# Which figures there are, only the tables tell: what they have nothing to show of is left out, and the log says why.
rule figures:
    input:
        tables=expand(f"{ROOT}/tables/{{table}}.parquet", table=TABLES),
    output:
        folder=report(
            directory(f"{ROOT}/figures"),
            # Without the pictures as wide as one column, whose names have a hyphen.
            patterns=["{family,[a-z_/]+}.png"],
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{family}"},
        ),
    log:
        f"{ROOT}/logs/figures.log",
    localrule: True
    conda:
        "../../envs/nightsweep.yaml"
    threads: 4
    params:
        python=PYTHON,
        tables=subpath(input[0], parent=True),
    shell:
        "{params.python} -m nightsweep.analysis.tools.draw --keep-going --tables {params.tables} --out {output.folder} --processes {threads}"
        " > {log} 2>&1"


rule report_page:
    input:
        tables=expand(f"{ROOT}/tables/{{table}}.parquet", table=TABLES),
        figures=f"{ROOT}/figures",
    output:
        page=report(
            f"{ROOT}/report.html",
            category="Report",
            caption="../report/page.rst",
        ),
    log:
        f"{ROOT}/logs/report.log",
    localrule: True
    conda:
        "../../envs/nightsweep.yaml"
    params:
        python=PYTHON,
        tables=subpath(input[0], parent=True),
        records=f"{ROOT}/points",
    shell:
        "{params.python} -m nightsweep.analysis.report --tables {params.tables} --figures {input.figures} --records {params.records}"
        " --out {output.page} > {log} 2>&1"
