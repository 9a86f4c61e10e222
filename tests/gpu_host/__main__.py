"""Sweeps and labelled runs on the GPUs of this machine, under a Slurm of its own.

    python3 -m tests.gpu_host KIT OUT --seconds 540 [--nodes 2]

KIT/sweeps/*.yaml are run in the order of their names, each by a Snakemake of its own: jobs of an earlier one go first.
A first line `# profile: FOLDER` has one run with another profile than profiles/slurm.
KIT/labelled, where there is one, names labelled runs; they have the GPUs for themselves before the first point. Ends
after the seconds, when all points have a record, or when three or more have failed and no more are well; jobs that run
then are cancelled. OUT has the folders of points and labelled runs then, without the profiler's own reports, as pieces
of a tar file. Several nodes share the GPUs and CPUs evenly, and NCCL takes them for hosts that are joined by sockets.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

from nightsweep.jobs.host.facts import ROOT
from nightsweep.jobs.launch.launch import conclude
from nightsweep.jobs.record.json_files import read_json
from nightsweep.jobs.record.raw_files import MEASURED, measured_record
from nightsweep.jobs.record.record import Record
from tests.cluster.slurm import Cluster, Shape

WORK = Path("/tmp/ns")
FEW_FAILED = 3
POLL_S = 2
MIB_PER_CPU = 8000
LABELLED_LIMIT_S = 110
# Slurm's basic priority is less by one with each job submitted, so a sweep's step must exceed the jobs of those before.
NICE_STEP = 1000


def driver(sweep: Path, nice: int, log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    profile = sweep.read_text().partition("\n")[0].partition("# profile: ")[2] or "profiles/slurm"
    command = ["snakemake", "points", "--profile", profile, "--configfile", str(sweep)]
    command += [f"--submitit-extra=--nice={nice}", "--submitit-poll-s", "5", "--latency-wait", "10"]
    with log.open("wb") as sink:
        return subprocess.Popen(command, stdout=sink, stderr=sink, env=environment, start_new_session=True)


def labelled(names: str, gpus: int) -> None:
    command = [sys.executable, "-m", "tests.labelled.run", str(WORK / "labelled"), "--names", names]
    command += ["--gpus", str(gpus), "--limit-s", str(LABELLED_LIMIT_S)]
    subprocess.run(command, check=False)


def records() -> tuple[int, list[Record]]:
    """How many points there are to run, as far as drivers have begun, and the records that are written."""
    sweeps = [json.loads(path.read_text()) for path in Path("results").glob("*/sweep.json")]
    found = [read_json(path, Record) for path in Path("results").glob("*/points/*/record.json")]
    return sum(len(sweep["points"]) for sweep in sweeps), [record for record in found if record]


def wait(drivers: list[subprocess.Popen[bytes]], end: float) -> None:
    while time.monotonic() < end and any(one.poll() is None for one in drivers):
        ok = [record.status == "ok" for record in records()[1]]
        if len(ok) - sum(ok) >= max(FEW_FAILED, sum(ok)):
            print(f"{len(ok) - sum(ok)} of {len(ok)} points failed: the night ends here")
            break
        time.sleep(POLL_S)
    for number in (signal.SIGINT, signal.SIGKILL):
        for one in drivers:
            with suppress(ProcessLookupError):
                os.killpg(one.pid, number)
        with suppress(subprocess.TimeoutExpired):
            for one in drivers:
                one.wait(15)
            return


def conclude_blocks() -> None:
    """Write the record of each first point of a block that the end cut off, which waits for that of the last."""
    for folder in {path.parent for path in Path("results").glob(f"*/points/*/{MEASURED}")}:
        record = measured_record(folder)
        if record is not None and not (folder / "record.json").exists():
            conclude(folder, record)


def tell() -> None:
    points, found = records()
    print(f"{len(found)} of {points} points have a record")
    for record in sorted(found, key=lambda record: str(record.point_id)):
        why = "" if record.status == "ok" else f" {record.reason}: {record.message}"
        print(f"{record.status} {record.point_id}{why}"[:300])
    runs = [record.runs.timed for record in found]
    print(f"{sum(run.forked for run in runs)} of {len(runs)} starts were forked")


def pack(out: Path) -> None:
    what = [name for name in ("results", f"{WORK}/log", f"{WORK}/labelled") if Path(name).exists()]
    files = f"tar c --exclude='*.nsys-rep' {' '.join(what)} 2> /dev/null"
    subprocess.run(f"{files} | xz -T0 -2 | split -b 15M -d - {out}/results.tar.xz.", shell=True, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m tests.gpu_host", description=__doc__)
    parser.add_argument("kit", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--cpus", type=int, default=max(1, (os.cpu_count() or 1) - 2), help="for jobs, all but two")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    os.chdir(ROOT)
    for folder in (options.out, WORK / "log"):
        folder.mkdir(parents=True, exist_ok=True)
    nodes = options.nodes
    cpus = options.cpus // nodes
    shape = Shape(nodes, options.gpus // nodes, real=True, cpus=cpus, memory_mb=cpus * MIB_PER_CPU)
    with Cluster(WORK / "cluster", shape) as cluster:
        all_nodes = f"nodename={','.join(shape.names)}"
        names = options.kit / "labelled"
        if names.exists():  # drivers start meanwhile; their jobs wait
            cluster.run("scontrol", "update", all_nodes, "state=drain", "reason=labelled runs")
        sweeps = sorted((options.kit / "sweeps").glob("*.yaml"))
        environment = cluster.environment | ({"NCCL_SOCKET_IFNAME": "lo"} if nodes > 1 else {})
        drivers = [driver(s, n * NICE_STEP, WORK / f"log/{s.stem}.log", environment) for n, s in enumerate(sweeps)]
        if names.exists():
            labelled(names.read_text().strip(), options.gpus)
            cluster.run("scontrol", "update", all_nodes, "state=resume")
        wait(drivers, end)
    conclude_blocks()
    tell()
    pack(options.out)


if __name__ == "__main__":
    main()
