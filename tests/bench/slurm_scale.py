"""What a sweep costs on a Slurm of the tests: until its points are in the queue, and its chunks as jobs on four nodes.

The nodes are all on this machine and share its cores, so four of them are no faster than one. What shows is how many
chunks run at once, and how little of the work is left to the driver.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from nightsweep.analysis.sweep.labels import plural
from tests.bench.cost import LOOK_S, Meter, line
from tests.cluster.load import LIMITS, counted, queued
from tests.cluster.slurm import Cluster, Shape

ROOT = Path(__file__).parents[2]
NODES = 4
CORES = 2
"""Of a node: one chunk fills it."""
SHAPE = Shape(nodes=NODES, gpus=CORES, cpus=CORES, accounting=True, extra=LIMITS)
POINTS, CHUNKS = "main", "urgent"
"""Partitions. The first is down, so that points stay in the queue."""
SETTLE_S = 10
"""Until the accounting has the end of the last job."""


@dataclass(frozen=True)
class Job:
    """A chunk's job, as the accounting has it: when it ran, seconds of cores."""

    begin: datetime
    end: datetime
    core_s: float


def command(*more: str) -> list[str]:
    """Snakemake with the profile of clusters. A point asks for what a node of SHAPE has."""
    asked = ["mem_mb=100", "cpus_per_task=1", "batch_min=0"]
    own = [f"derive:slurm_partition={CHUNKS}", f"derive:cpus_per_task={CORES}"]
    profile = ["--profile", str(ROOT / "profiles/slurm"), "--configfile", "sweep.yaml"]
    return [
        *(str(Path(sys.executable).with_name("snakemake")), *more, "-s", str(ROOT / "Snakefile"), *profile),
        *("--default-resources", *asked, "--set-resources", *own),
    ]


def submit(cluster: Cluster, folder: Path, size: int) -> None:
    """Print what it takes until the first sbatch of points that are not measured, and until all are in the queue.
    `folder`: has the sweep's file."""
    cluster.run("scontrol", "update", f"partition={POINTS}", "state=down")
    environment, calls = counted(cluster, folder)
    meter = Meter(command("points"), folder, folder / "commands.log", environment)
    for name, reached in (
        ("first submission", lambda: calls.exists() and "sbatch" in calls.read_text()),
        ("all submitted", lambda: queued(cluster) == size),
    ):
        while not reached():
            if not meter.look():
                meter.fail()
            time.sleep(LOOK_S)
        print(line(f"{size:,}", name, meter.cost(), folder), flush=True)
    meter.process.send_signal(signal.SIGINT)
    meter.process.wait(timeout=120)


def derive(cluster: Cluster, folder: Path, size: int) -> None:
    """Print what it takes from records to tables, the chunks as jobs. `folder`: has the sweep's file and its
    records."""
    begin = datetime.now().replace(microsecond=0)
    environment = cluster.environment | {"PYTHONPATH": str(ROOT)}
    meter = Meter(command("results/scale/tables/points.parquet"), folder, folder / "commands.log", environment)
    found = meter.finish()
    time.sleep(SETTLE_S)
    jobs = accounted(cluster, begin)
    at_once, core_s = most_at_once(jobs), sum(job.core_s for job in jobs)
    said = f"{plural(len(jobs), 'chunk')} took {core_s:.1f} s of cores, {at_once} at once"
    print(f"{line(f'{size:,}', f'tables, {NODES} nodes', found, folder)}; {said}", flush=True)


def accounted(cluster: Cluster, since: datetime) -> list[Job]:
    """The jobs of the partition of chunks since then."""
    columns = ["--noheader", "--parsable2", "--format=JobID,Start,End,TotalCPU"]
    asked = [f"--starttime={since.isoformat()}", f"--partition={CHUNKS}"]
    rows = [row.split("|") for row in cluster.run("sacct", *columns, *asked).splitlines()]
    # Only where sacct shows steps, which have a dot in their id, does a job have the seconds of cores of its own.
    return [Job(*map(datetime.fromisoformat, when), seconds(cpu)) for job, *when, cpu in rows if "." not in job]


def seconds(text: str) -> float:
    """Of a time as sacct says it: DD-HH:MM:SS, HH:MM:SS, MM:SS.mmm."""
    days, _, rest = text.rpartition("-")
    parts = [float(part) for part in rest.split(":")]
    return int(days or 0) * 86_400 + sum(part * 60**power for power, part in enumerate(reversed(parts)))


def most_at_once(jobs: Iterable[Job]) -> int:
    """The largest number of jobs that ran at one time."""
    jobs = list(jobs)
    return max((sum(other.begin <= job.begin < other.end for other in jobs) for job in jobs), default=0)
