"""Results of a sweep with secrets in every kind of file, for tests of publishing."""

import gzip
import json
import sqlite3

import polars as pl

from tests.analysis.figures.made_up import made_up, write
from tests.analysis.readers.test_readers import DATA

USER, TOKEN, PHRASE, ADDRESS = "mhopper", "hf_Zq81xvKp33", "correct horse; battery=staple", "10.31.7.8"
HOME, WORK = "/home/mhopper", "/scratch/proj42/run7"
HOSTS, DOMAIN = ("fen07", "fen11"), "hpc.moor.example"
UUIDS = ("5f3c1a2b-0d4e-4f60-8a71-92b3c4d5e6f7", "6a4d2b3c-1e5f-4a71-9b82-a3c4d5e6f708")
SECRETS = (
    USER,
    TOKEN,
    PHRASE,
    ADDRESS,
    HOME,
    WORK,
    *HOSTS,
    DOMAIN,
    *UUIDS,
    "fen[07,11]",
    "proj42",
    "hooks.moor",
    "sealed",
)
ENVIRONMENT = (
    f"HOME={HOME};USER={USER};HF_TOKEN={TOKEN};NOTE={PHRASE};HOSTNAME={HOSTS[0]}.{DOMAIN};PWD={WORK};RANK=0;"
    f"DB_PASSWORD=sealed;SLURM_JOB_NODELIST=fen[07,11];SSH_CLIENT={ADDRESS} 5122 22;LANG=C.UTF-8;PATH=/usr/bin:/bin"
)
TRACEBACK = (
    f'Traceback:\n  File "{HOME}/nightsweep/jobs/rank/worker.py", line 7, in main\n  File "{HOME}/venv/lib/python3.12/'
    f'site-packages/torch/x.py", line 9, in send\nError: {HOSTS[1]}.{DOMAIN} ({ADDRESS}:29500) for {USER}: {WORK}/lock'
)
POINT = "73676f623ce0"


def as_record(content: str) -> str:
    """The fixture's record of two nodes, with hosts and GPUs that are secrets."""
    record = json.loads(content.replace('"n1"', f'"{HOSTS[0]}.{DOMAIN}"').replace('"n2"', f'"{HOSTS[1]}"'))
    for host, uuid in zip(record["hosts"], UUIDS, strict=True):
        host["gpus"][0]["uuid"] = f"GPU-{uuid}"
    record["command"] = (
        f"{HOME}/nightsweep/jobs/launch/launch.py results/x -> "
        f"srun {HOME}/venv/bin/python -m nightsweep.jobs.rank.supervisor"
    )
    record["slurm"] |= {"nodelist": "fen[07,11]", "partition": "moor", "job_id": "81723"}
    record["settings"]["data"] = f"{HOME}/corpora/english"
    record["failure"] = {"host": HOSTS[1], "tracebacks": {}}
    return json.dumps(record)


def make_tables(folder):
    """Made-up tables whose texts hold secrets."""
    tables = made_up()
    last = {
        "host": pl.lit(HOSTS[1]),
        "traceback": pl.lit(TRACEBACK),
        "message": pl.lit(f"{USER} on {HOSTS[0]}: {WORK}"),
    }
    frames = {name: tables[name] for name in tables.frames}
    frames["failures"] = frames["failures"].with_columns(**last)
    frames["host_samples"] = frames["host_samples"].with_columns(host=pl.lit(HOSTS[0]))
    frames["gpu_samples"] = tables["gpu_samples"].clear(2).with_columns(uuid=pl.Series([f"GPU-{u}" for u in UUIDS]))
    hosts = pl.Series("hosts", [list(HOSTS)] * frames["points"].height)
    message = pl.when(pl.col("status") == "failed").then(pl.lit(TRACEBACK)).alias("message")
    frames["points"] = frames["points"].with_columns(hosts, message, data=pl.lit(f"{HOME}/corpora/english"))
    write(type(tables)(frames), folder)


def make_nsys(path):
    """The fixture's export, with what nsys writes beside the events."""
    path.write_bytes(gzip.decompress((DATA / "h200-ddp-r0.sqlite.gz").read_bytes()))
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        db.execute("CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)")
        db.execute("CREATE TABLE PROCESSES (pid INTEGER, name TEXT)")
        db.execute("CREATE TABLE DIAGNOSTIC_EVENT (text TEXT)")
        db.execute("CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER)")
        db.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('DeviceEnvironment', ?)", (ENVIRONMENT,))
        db.execute("INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', ?)", (f'X_KEY="{TOKEN}"',))
        db.execute("INSERT INTO PROCESSES VALUES (1, ?)", (f"{HOME}/bin/edit",))
        db.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (?)", (f"see {WORK}/log",))
        db.execute("INSERT INTO StringIds VALUES (900001, ?), (900002, ?)", (f"{WORK}/out", f"hello {USER} {TOKEN}"))
        db.execute("INSERT INTO ProcessStreams VALUES (1, 900001, 900002)")
        mark = "INSERT INTO NVTX_EVENTS (start, eventType, text, textId) VALUES (1, 34, ?, 900001)"
        db.execute(mark, (f"opened {HOME}/corpora/english on {HOSTS[0]}, key {TOKEN}",))
        db.execute("UPDATE TARGET_INFO_GPU SET uuid = ? WHERE id = 0", (UUIDS[0],))
        db.executemany("INSERT INTO DIAGNOSTIC_EVENT VALUES (?)", [(ENVIRONMENT * 20,)] * 50)
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM DIAGNOSTIC_EVENT")  # its pages stay in the file


def make_kineto(path):
    trace = json.loads(gzip.decompress((DATA / "kineto-cpu-r0.json.gz").read_bytes()))
    trace |= {"host_name": HOSTS[0], "traceName": f"{WORK}/k.json", "metadata": {"env": {"HF_TOKEN": TOKEN}}}
    trace["traceEvents"][0].setdefault("args", {})["Call stack"] = [f"{HOME}/x.py(3): go", f"{WORK}/y.py(4): run"]
    trace["traceEvents"].append({"ph": "M", "name": "process_name", "args": {"name": f"{HOSTS[1]}: {USER}"}})
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))


def make_results(folder):
    """Results with secrets wherever some were ever seen."""
    point = folder / "points" / POINT
    (point / "traced").mkdir(parents=True)
    record = as_record((DATA / "h200-2node/zero3/record.json").read_text())
    (point / "record.json").write_text(record)
    (point / "point.json").write_text(json.dumps({"point_id": POINT, "settings": json.loads(record)["settings"]}))
    (point / "attempts.jsonl").write_text('{"attempt": 1, "host": "fen07"}\n{"att')
    (point / "traced/rank0.log").write_text(ENVIRONMENT)
    (point / "traced/trace-r0.nsys-rep").write_bytes(b"binary")
    alert = {"below_percent": 5.0, "command": "curl https://hooks.moor.example/T0/K81"}
    (folder / "sweep.json").write_text(json.dumps({"name": "fsdp2", "alert": alert, "points": [json.loads(record)]}))
    make_tables(folder / "tables")
    make_nsys(point / "traced/trace-r0.sqlite")
    make_kineto(point / "traced/trace-r1.json.gz")
