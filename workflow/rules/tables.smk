# Derived data: the raw files of some hundred points to tables and diagnoses, then one set of tables for the sweep.
TABLES = (
    "points steps accuracy ranks breakdown activities timeline host_samples gpu_samples gpu_events energy clocks cost phases failures"
    " diagnoses remedies pairs"
).split()


# It reads and writes what Snakemake is not told of: it does only those points again whose record is another one, and keeps
# what is done when it is killed. A point that cannot be analysed is a line in its output.
rule derive:
    input:
        records=lambda wildcards: expand(
            "results/{sweep}/points/{point}/record.json",
            sweep=wildcards.sweep,
            point=members(wildcards.chunk),
        ),
    output:
        done="results/{sweep}/derived/{chunk}.json",
    log:
        "results/{sweep}/logs/derived/{chunk}.log",
    conda:
        "../../envs/nightsweep.yaml"
    threads: chunks.RESOURCES["cpus_per_task"]
    resources:
        **chunks.RESOURCES,
        machine=1,  # where points run on this machine, it must not disturb them
    params:
        python=PYTHON,
        points=lambda wildcards: members(wildcards.chunk),
        # A profile may give the job fewer cores, and this machine may have fewer.
        processes=lambda wildcards, threads, resources: min(
            threads, resources.cpus_per_task
        ),
    shell:
        "{params.python} -m nightsweep.analysis.tools.derive results/{wildcards.sweep} --chunk {wildcards.chunk} --points {params.points}"
        " --processes {params.processes} > {log} 2>&1"


rule tables:
    input:
        derived=lambda wildcards: derived(remedies=tried()),
        repeats=lambda wildcards: through_repeats() and RUN.repeat_files(),
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
        folder=subpath(output[0], parent=True),
    shell:
        "{params.python} -m nightsweep.analysis.tools.collect {params.sweep_file} --rounds {params.rounds} --derived {params.derived}"
        " --out {params.folder} > {log} 2>&1"
