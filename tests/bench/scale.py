"""What follows the points, at a size: seconds, memory and files of sweeps of which only records are there.

    make bench-scale                                  # 100 and 1,000 points
    make bench-scale SCALE="10000 --folder /scratch"  # ten thousand, kept in that folder
    make bench-scale SCALE="--traced 100"             # a hundred points with a trace each
    make bench-scale SCALE="--ranks 64 512"           # one traced point of many ranks

A point is one of our published set under a new id: its record, and nothing else, as of a point of which no step was
logged. So the times are those of the workflow and of its many small things. A traced one is a rank of a real run on an
H200, its trace of nsys 0.4 MB. A point of many ranks is a real trace, copied (tests/bench/many_ranks.py): tables and
diagnosis, which names the slow rank. Memory is resident, of the driver alone and of all processes together, looked at
ten times a second. Where a Slurm cluster can be started (tests/cluster), the submission of points and chunks on four
nodes follow (tests/bench/slurm_scale.py); of these, what the nodes do is not in the driver's rows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from nightsweep.analysis.ingest.derived import Derived
from nightsweep.jobs.point.point import FIELDS, Point
from nightsweep.jobs.record.json_files import write_json
from nightsweep.jobs.sweep.sweep import load
from tests.bench import many_ranks, slurm_scale
from tests.bench.cost import Meter, head, line
from tests.cluster.slurm import Cluster, available

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "data/h200-2026-11-21/points"
SIZES = (100, 1000)
OWN = ("repeat", "trace_ranks")
"""Settings of the record that are not taken over: the first is no setting of a sweep, the other has no effect here."""
POINTS_A_CONFIGURATION = 25
RESUME = "one point anew"
"""A run after one of the points was measured again, as a resumed night ends: its chunk and all that follows it."""


def published() -> dict[str, Any]:
    """The record that all points have."""
    return next(
        known
        for path in sorted(RECORDS.glob("*/record.json"))
        if (known := json.loads(path.read_text()))["status"] == "ok" and known["settings"]["strategy"] == "ddp"
    )


def write_sweep(folder: Path, size: int, record: dict[str, Any]) -> list[Point]:
    """Write the sweep file of points with this record; the points."""
    base = {k: v for k, v in record["settings"].items() if k in FIELDS and v is not None and k not in OWN}
    rates = [round(1e-4 * (i + 1), 6) for i in range(max(1, size // POINTS_A_CONFIGURATION))]
    axes = {"learning_rate": rates, "seed": list(range(min(size, POINTS_A_CONFIGURATION)))}
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump({"name": "scale", "base": base, "axes": axes}))
    points = load(file).points
    assert len(points) == size, f"{size} is not a multiple of {POINTS_A_CONFIGURATION}"
    return points


def make(folder: Path, size: int, traced: bool = False) -> None:
    """Write the sweep file and the record of each of its points; of traced ones their raw data, too."""
    record = many_ranks.record() if traced else published()
    if traced:
        record["settings"]["ranks_per_node"] = 1
    for point in write_sweep(folder, size, record):
        own = folder / "results/scale/points" / point.id
        if traced:
            many_ranks.make_point(own, 1, slow=None)
        own.mkdir(parents=True, exist_ok=True)
        write_json(own / "record.json", {**record, "point_id": point.id, "settings": point.settings()})


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


def measure(folder: Path, size: int, traced: bool = False) -> None:
    """Print a line for each command."""
    folder.mkdir(parents=True)
    make(folder, size, traced)
    for name, command in commands().items():
        if name == RESUME:
            record = next((folder / "results/scale/points").glob("*/record.json"))
            record.write_text(record.read_text() + "\n")  # Snakemake looks at what is in a file, not at its time alone
        what = f"{size:,}" + " traced" * traced
        print(line(what, name, Meter(command, folder, folder / "commands.log").finish(), folder), flush=True)


def measure_ranks(folder: Path, ranks: int) -> None:
    """Print a line for the tables and the diagnosis of a traced point of many ranks, the last but two of them slow."""
    point, slow = folder / "points" / f"{ranks:012x}", ranks - 3
    many_ranks.make_point(point, ranks, slow)
    words = ["--chunk", "points-0000", "--points", point.name, "--processes", str(len(os.sched_getaffinity(0)))]
    command = [sys.executable, "-m", "nightsweep.analysis.tools.derive", str(folder), *words]
    print(
        line(f"{ranks} ranks", "derived", Meter(command, ROOT, folder / "commands.log").finish(), folder / "derived"),
        flush=True,
    )
    causes = Derived(folder / "derived").causes([point.name])[point.name]
    named = {cause["kind"]: cause["rank"] for cause in causes}.get("straggler")
    if named != slow:
        sys.exit(f"rank {slow} is slow; the diagnosis names {named}")


def measure_on_slurm(cluster: Cluster, folder: Path, size: int) -> None:
    """Print the lines of tests/bench/slurm_scale.py."""
    queue, chunks = folder / "queue", folder / "chunks"
    for own in (queue, chunks):
        own.mkdir(parents=True)
    write_sweep(queue, size, published())
    make(chunks, size)
    slurm_scale.submit(cluster, queue, size)
    slurm_scale.derive(cluster, chunks, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, help="points (100 1000, where no ranks are given)")
    parser.add_argument("--traced", nargs="+", type=int, default=[], help="points, each with a trace")
    parser.add_argument("--ranks", nargs="+", type=int, default=[], help="ranks of a point: up to 8, or times 8")
    parser.add_argument("--folder", type=Path, help="keep the sweeps in this folder, which must not be there yet")
    args = parser.parse_args()
    sizes = args.sizes or (() if args.ranks or args.traced else SIZES)
    print(head(), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        for ranks in args.ranks:
            measure_ranks(folder / f"{ranks}-ranks", ranks)
        for size in args.traced:
            measure(folder / f"{size}-traced", size, traced=True)
        for size in sizes:
            measure(folder / str(size), size)
        if sizes and (why := available(accounting=True)):
            print(f"no rows of a Slurm cluster: {why}")
        elif sizes:
            with Cluster(folder / "cluster", slurm_scale.SHAPE) as cluster:
                for size in sizes:
                    measure_on_slurm(cluster, folder / f"{size}-slurm", size)


if __name__ == "__main__":
    main()
