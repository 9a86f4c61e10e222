# Derived data: each point's raw files to tables, then one set for the sweep.
TABLES = (
    "points steps accuracy ranks breakdown activities timeline host_samples gpu_samples gpu_events energy clocks cost phases failures"
    " diagnoses remedies pairs"
).split()


rule ingest:
    input:
        record="results/{sweep}/points/{point}/record.json",
    output:
        tables=directory("results/{sweep}/derived/{point}"),
    log:
        "results/{sweep}/logs/ingest/{point}.log",
    localrule: True
    conda:
        "../../envs/nightsweep.yaml"
    params:
        python=PYTHON,
        folder=subpath(input.record, parent=True),
    shell:
        "{params.python} -m analysis.ingest.point_tables {params.folder} --out {output.tables} > {log} 2>&1"


rule diagnosis:
    input:
        record="results/{sweep}/points/{point}/record.json",
        tables="results/{sweep}/derived/{point}",
    output:
        diagnosis="results/{sweep}/diagnoses/{point}.json",
    log:
        "results/{sweep}/logs/diagnosis/{point}.log",
    localrule: True
    conda:
        "../../envs/nightsweep.yaml"
    params:
        python=PYTHON,
        folder=subpath(input.record, parent=True),
    shell:
        "{params.python} -m analysis.diagnosis.point_diagnosis {params.folder} --tables {input.tables}"
        " --out {output.diagnosis} > {log} 2>&1"


rule tables:
    input:
        derived=lambda wildcards: expand(f"{ROOT}/derived/{{point}}", point=measured()),
        diagnoses=lambda wildcards: expand(
            f"{ROOT}/diagnoses/{{point}}.json", point=measured()
        ),
        repeats=lambda wildcards: measured() and RUN.repeat_files(),
    output:
        tables=expand("results/{{sweep}}/tables/{table}.parquet", table=TABLES),
    log:
        "results/{sweep}/logs/tables.log",
    localrule: True
    conda:
        "../../envs/nightsweep.yaml"
    params:
        python=PYTHON,
        sweep_file="results/{sweep}/sweep.json",
        rounds=lambda wildcards: RUN.round_files(),
        derived="results/{sweep}/derived",
        diagnoses="results/{sweep}/diagnoses",
        folder=subpath(output[0], parent=True),
    shell:
        "{params.python} -m analysis.tools.collect {params.sweep_file} --rounds {params.rounds} --derived {params.derived}"
        " --diagnoses {params.diagnoses} --out {params.folder} > {log} 2>&1"
