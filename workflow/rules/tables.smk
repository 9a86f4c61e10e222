# Derived data: each point's raw files to tables, then one set for the sweep.
TABLES = (
    "points steps accuracy ranks breakdown activities timeline host_samples gpu_samples gpu_events energy clocks cost failures"
).split()


rule ingest:
    input:
        record="results/{sweep}/points/{point}/record.json",
    output:
        tables=directory("results/{sweep}/derived/{point}"),
    log:
        "results/{sweep}/logs/ingest/{point}.log",
    conda:
        "../../envs/nightsweep.yaml"
    params:
        folder=subpath(input.record, parent=True),
    shell:
        "python -m analysis.ingest {params.folder} --out {output.tables} > {log} 2>&1"


rule tables:
    input:
        derived=expand(f"{ROOT}/derived/{{point}}", point=POINTS),
    output:
        tables=expand("results/{{sweep}}/tables/{table}.parquet", table=TABLES),
    log:
        "results/{sweep}/logs/tables.log",
    conda:
        "../../envs/nightsweep.yaml"
    params:
        sweep_file="results/{sweep}/sweep.json",
        derived="results/{sweep}/derived",
        folder=subpath(output[0], parent=True),
        points=sorted(POINTS),
    shell:
        "python -m analysis.collect {params.sweep_file} --derived {params.derived} --out {params.folder} > {log} 2>&1"
