"""What follows the points, at a size: seconds, memory and files of sweeps of which only records are there.

    make bench-scale                                  # 100 and 1,000 points
    make bench-scale SCALE="10000 --folder /scratch"  # ten thousand, kept in that folder
    make bench-scale SCALE="--ranks 64 512"           # one traced point of many ranks

A point is one of our published set under a new id: its record, and nothing else, as of a point of which no step was
logged. So the times are those of the workflow and of its many small things; what traces cost is in `make bench`.
A point of many ranks is a real trace, copied (tests/bench/many_ranks.py): tables and diagnosis, which names the slow
rank. Memory is resident, of the driver alone and of all processes together, looked at ten times a second.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from analysis.ingest.derived import Derived
from jobs.point.point import FIELDS
from jobs.record.json_files import write_json
from jobs.sweep.sweep import load
from tests.bench import many_ranks

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "data/h200-2026-11-21/points"
SIZES = (100, 1000)
OWN = ("repeat", "trace_ranks")
"""Settings of the record that are not taken over: the first is no setting of a sweep, the other has no effect here."""
POINTS_A_CONFIGURATION = 25
LOOK_S = 0.1
RESUME = "one point anew"
"""A run after one of the points was measured again, as a resumed night ends: its chunk and all that follows it."""


@dataclass(frozen=True)
class Cost:
    """Seconds, those of all cores together, and the largest resident memory of the driver and of all its processes,
    MB. Where others work on the machine, the cores' seconds tell more than the seconds."""

    seconds: float
    core_s: float
    driver_mb: float
    all_mb: float


def make(folder: Path, size: int) -> None:
    """Write the sweep file and the record of each of its points."""
    record = next(
        known
        for path in sorted(RECORDS.glob("*/record.json"))
        if (known := json.loads(path.read_text()))["status"] == "ok" and known["settings"]["strategy"] == "ddp"
    )
    base = {k: v for k, v in record["settings"].items() if k in FIELDS and v is not None and k not in OWN}
    rates = [round(1e-4 * (i + 1), 6) for i in range(max(1, size // POINTS_A_CONFIGURATION))]
    axes = {"learning_rate": rates, "seed": list(range(min(size, POINTS_A_CONFIGURATION)))}
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump({"name": "scale", "base": base, "axes": axes}))
    points = load(file).points
    assert len(points) == size, f"{size} is not a multiple of {POINTS_A_CONFIGURATION}"
    for point in points:
        own = folder / "results/scale/points" / point.id
        own.mkdir(parents=True, exist_ok=True)
        write_json(own / "record.json", {**record, "point_id": point.id, "settings": point.settings()})


def family(process: psutil.Process) -> Iterator[tuple[int, float, int]]:
    """Id, seconds of cores so far and resident bytes of a process and of all that it started."""
    for one in (process, *process.children(recursive=True)):
        try:
            with one.oneshot():
                yield one.pid, sum(one.cpu_times()[:2]), one.memory_info().rss
        except psutil.NoSuchProcess:
            yield one.pid, 0.0, 0


def cost(command: list[str], folder: Path, log: Path) -> Cost:
    """What a command costs that must end well."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    begin, driver, every = time.monotonic(), 0, 0
    cores: dict[int, float] = {}
    with log.open("a") as sink:
        process = psutil.Popen(command, cwd=folder, stdout=sink, stderr=sink, env=os.environ | {"PATH": path})
        while process.poll() is None:
            try:
                found = list(family(process))
            except psutil.NoSuchProcess:
                break
            cores |= {pid: max(cores.get(pid, 0.0), seconds) for pid, seconds, _ in found}
            driver, every = max(driver, found[0][2]), max(every, sum(size for _, _, size in found))
            time.sleep(LOOK_S)
    if process.wait():
        sys.exit(f"{' '.join(command)}: {log.read_text()[-2000:]}")
    return Cost(time.monotonic() - begin, sum(cores.values()), driver / 1e6, every / 1e6)


def files_and_bytes(folder: Path) -> tuple[int, int]:
    """How many files are in a folder, and their bytes."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


def commands() -> dict[str, list[str]]:
    """By name, in the order in which they are to run."""
    tools = Path(sys.executable).parent
    run = ["-s", str(ROOT / "Snakefile"), "--profile", str(ROOT / "profiles/local"), "--configfile", "sweep.yaml"]
    return {
        "check": [str(tools / "nightsweep"), "check", "sweep.yaml"],
        **{
            name: [str(tools / "snakemake"), *targets, *run]
            for name, targets in (
                ("dry run (-n)", ["-n"]),
                ("downstream", ["results/scale/tables/points.parquet"]),
                ("figures", ["figures"]),
                ("report", []),
                ("nothing to do", []),
                (RESUME, []),
            )
        },
    }


def measure(folder: Path, size: int) -> None:
    """Print a line for each command."""
    folder.mkdir(parents=True)
    make(folder, size)
    for name, command in commands().items():
        if name == RESUME:
            record = next((folder / "results/scale/points").glob("*/record.json"))
            record.write_text(record.read_text() + "\n")  # Snakemake looks at what is in a file, not at its time alone
        print(line(f"{size:,}", name, cost(command, folder, folder / "commands.log"), folder), flush=True)


def measure_ranks(folder: Path, ranks: int) -> None:
    """Print a line for the tables and the diagnosis of a traced point of many ranks, the last but two of them slow."""
    point, slow = folder / "points" / f"{ranks:012x}", ranks - 3
    many_ranks.make_point(point, ranks, slow)
    words = ["--chunk", "points-0000", "--points", point.name, "--processes", str(len(os.sched_getaffinity(0)))]
    command = [sys.executable, "-m", "analysis.tools.derive", str(folder), *words]
    print(
        line(f"{ranks} ranks", "derived", cost(command, ROOT, folder / "commands.log"), folder / "derived"), flush=True
    )
    causes = Derived(folder / "derived").causes([point.name])[point.name]
    named = {cause["kind"]: cause["rank"] for cause in causes}.get("straggler")
    if named != slow:
        sys.exit(f"rank {slow} is slow; the diagnosis names {named}")


def line(size: str, name: str, found: Cost, folder: Path) -> str:
    count, total = files_and_bytes(folder)
    return (
        f"{size:>9} {name:14} {found.seconds:8.1f} s {found.core_s:8.1f} s {found.driver_mb:8,.0f}"
        f" {found.all_mb:8,.0f} MB {count:9,} files {total / 1e6:8,.1f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, help="points (100 1000, where no ranks are given)")
    parser.add_argument("--ranks", nargs="+", type=int, default=[], help="ranks of a point: up to 8, or times 8")
    parser.add_argument("--folder", type=Path, help="keep the sweeps in this folder, which must not be there yet")
    args = parser.parse_args()
    print(f"{'points':>9} {'':14} {'time':>10} {'of cores':>10} {'driver':>8} {'all':>11} {'on disk then':>15}")
    with tempfile.TemporaryDirectory() as scratch:
        for ranks in args.ranks:
            measure_ranks((args.folder or Path(scratch)) / f"{ranks}-ranks", ranks)
        for size in args.sizes or (() if args.ranks else SIZES):
            measure((args.folder or Path(scratch)) / str(size), size)


if __name__ == "__main__":
    main()
