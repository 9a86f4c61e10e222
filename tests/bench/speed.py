"""How fast traces become tables, beside what other tools need for a part of that.

    make bench                                                   # our own DDP export, tiled
    make bench BENCH="EXPORT.sqlite --copies 50 250 1000"
    make bench BENCH="EXPORT.sqlite --kineto TRACE.json.gz ..."

Every line is from the same run; our own times are medians of six, three before the other tools' and three after, for a
machine may be slower at one time than at another. A tool that is not there leaves a dash (tests/bench/peers.py).
`ingest` is all of `nightsweep ingest`: read, attribute, find steps, divide them, sum, write. `nsys stats` is its report
nvtx_gpu_proj_sum alone, nsys-ai its overlap and its root causes, HTA its temporal breakdown and its overlap. Peak
memory is that of the process (VmHWM), the largest of all runs.
"""

from __future__ import annotations

import argparse
import gzip
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.bench import peers
from tests.bench.tile import parquet, tile

OWN = Path(__file__).parents[1] / "data/h200-ranks/ddp-r0.sqlite.gz"
RUNS = 3
"""Of our own, before the others and again after them; the first of all reads the trace and the program from disk. Other
tools run once, with the trace in the system's cache by then, and long enough that their own start does not count."""
Cost = tuple[float, float]
"""Seconds, and peak MB."""


def measured(commands: list[list[str]]) -> Cost | None:
    """What commands cost that must end well, one after the other; None of none."""
    seconds, peak = 0.0, 0.0
    for command in commands:
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            sys.exit(f"{' '.join(command)}: {said.strip()}")
        seconds, peak = seconds + time.monotonic() - begin, max(peak, usage.ru_maxrss / 1e3)
    return (seconds, peak) if commands else None


def ingests(trace: Path, scratch: Path) -> list[Cost]:
    """What `nightsweep ingest` costs, RUNS times."""
    out = scratch / "out"
    costs = []
    for _ in range(RUNS):
        cost = measured(
            [[sys.executable, "-m", "nightsweep.analysis.tools.cli", "ingest", str(trace), "--out", str(out)]]
        )
        assert cost is not None
        costs.append(cost)
        shutil.rmtree(out)
    return costs


def middle(costs: list[Cost]) -> Cost:
    """The median time, and the largest peak."""
    seconds, peaks = zip(*costs, strict=True)
    return statistics.median(seconds), max(peaks)


def shown(cost: Cost | None, ours: Cost) -> str:
    """Seconds, peak MB, and how many times ours."""
    return f"{cost[0]:>9.1f} {cost[1]:>6.0f} {cost[0] / ours[0]:>6.1f}" if cost else f"{'-':>9} {'-':>6} {'-':>6}"


def exports(export: Path, copies: list[int], scratch: Path) -> None:
    """The table of tiled exports."""
    print(f"{'':>38} {'ingest of SQLite':>16} {'of Parquet':>16} {'nsys stats':>16} {'x':>6} {'nsys-ai':>16} {'x':>6}")
    heads = f"{'copies':>7} {'kernels':>10} {'ranges':>11} {'MB':>7}" + f" {'s':>9} {'MB':>6}" * 2
    print(heads + f" {'s':>9} {'MB':>6} {'sqlite':>6} {'s':>9} {'MB':>6} {'pqt':>6}")
    for count in copies:
        tiled, folder = scratch / f"tiled-{count}.sqlite", scratch / f"tiled-{count}_pqtdir"
        # Not in this process: what it has held at most would be counted as that of its children.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            rows = pool.submit(tile, export, tiled, count).result()
            pool.submit(parquet, tiled, folder).result()
        os.sync()  # else the first to be measured has the disk busy with what was just written
        runs, runs_parquet = ingests(tiled, scratch), ingests(folder, scratch)
        nsys, nsys_ai = measured(peers.nsys_sum(tiled)), measured(peers.nsys_ai(folder))
        ours = middle(runs + ingests(tiled, scratch))
        ours_parquet = middle(runs_parquet + ingests(folder, scratch))
        size = (
            f"{rows['CUPTI_ACTIVITY_KIND_KERNEL']:>10,} {rows['NVTX_EVENTS']:>11,} {tiled.stat().st_size / 1e6:>7.0f}"
        )
        own = " ".join(f"{cost[0]:>9.1f} {cost[1]:>6.0f}" for cost in (ours, ours_parquet))
        print(f"{count:>7} {size} {own} {shown(nsys, ours)} {shown(nsys_ai, ours_parquet)}", flush=True)
        tiled.unlink()
        shutil.rmtree(folder)


def kinetos(traces: list[Path], scratch: Path) -> None:
    """The table of Kineto traces."""
    print(f"\n{'Kineto trace':<44} {'MB':>7} {'ingest':>16} {'HTA':>16} {'x':>6}")
    for trace in traces:
        runs = ingests(trace, scratch)
        hta = measured(peers.hta(trace))
        ours = middle(runs + ingests(trace, scratch))
        own = f"{trace.stat().st_size / 1e6:>7.1f} {ours[0]:>9.1f} {ours[1]:>6.0f}"
        print(f"{trace.name[:44]:<44} {own} {shown(hta, ours)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.speed", description=__doc__)
    parser.add_argument("export", type=Path, nargs="?", help="SQLite export to tile (our own DDP run)")
    parser.add_argument("--copies", type=int, nargs="+", default=[50, 250], help="how many copies (50 250)")
    parser.add_argument("--kineto", type=Path, nargs="+", default=[], help="traces of PyTorch's profiler")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        export = args.export
        if export is None:
            export = scratch / "own.sqlite"
            export.write_bytes(gzip.decompress(OWN.read_bytes()))
        exports(export, args.copies, scratch)
        if args.kineto:
            kinetos(args.kineto, scratch)


if __name__ == "__main__":
    main()
