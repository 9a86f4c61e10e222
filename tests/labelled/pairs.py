"""Measures what the fix of each script gives: both sides in turns, three starts each, none of them traced.

    python -m tests.labelled.pairs OUT --peers DIR --images DIR [--names a,b] [--gpus 2] [--repeats 3] [--seconds 500]

With `--sides slow tried` it measures what scripts.yaml has under `tried` in place of the fix, and traces nothing; OUT
must be another folder than that of the fixes. With one side alone it has nothing to compare.

Most of a short start is Python that is loaded, so this process loads what the scripts import, and each rank is forked
from it; CUDA begins in the rank. The first start of the slow side goes on after its timed steps and is traced by the
PyTorch profiler: OUT/points/NAME is the point that a launch would have left. OUT/pairs/NAME.json has the means of the
timed steps of each start. What OUT has already is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nightsweep.jobs.host import facts
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import read_json, write_json
from nightsweep.jobs.record.launch_files import Job, RankResult
from nightsweep.jobs.record.record import NvmlUse, Record, Runs, TracerUse
from nightsweep.jobs.record.record import Run as RunEntry
from nightsweep.jobs.sweep.order import read_order
from tests.labelled import scripts
from tests.labelled.forked import Start, begin, is_over, load
from tests.labelled.scripts import ScriptRun

POLL_S = 0.02


@dataclass
class Pairs:
    """The starts of one run, those to come and what came of the others."""

    run: ScriptRun
    waiting: list[tuple[str, int]]
    gpus: list[int] = field(default_factory=list)
    means: dict[str, list[float]] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, run: ScriptRun, args: argparse.Namespace) -> Pairs:
        """None of its starts made yet."""
        means, losses = ({side: [] for side in args.sides} for _ in range(2))
        return cls(run, turns(args.repeats, args.sides), means=means, losses=losses)


def turns(repeats: int, sides: list[str]) -> list[tuple[str, int]]:
    """Both sides in turns that swap, so that a drift falls on both alike."""
    return [(side, n) for n in range(repeats) for side in (sides if n % 2 == 0 else sides[::-1])]


def timed_lines(folder: RunFolder, rank: int) -> list[dict[str, Any]]:
    lines = map(json.loads, folder.steps(rank).read_text().splitlines())
    return [line for line in lines if line["phase"] == "timed"]


def conclude(start: Start, pairs: Pairs, args: argparse.Namespace) -> str:
    """What came of a start, in a line."""
    label = f"{start.run.name} {start.side}-{start.number}"
    ranks, runs = range(start.run.ranks), read_order(start.folder).runs(start.folder)
    results = [folder.rank_file(rank, "result.json") for folder, _ in runs for rank in ranks]
    good = all(read_json(path, RankResult) is not None for path in results)
    shutil.rmtree(start.folder.path / "out", ignore_errors=True)
    if not good:
        logs = [start.folder.rank_file(rank, "log").read_text(errors="replace").splitlines() for rank in ranks]
        last = next((log[-1] for log in logs if log), "")
        return f"FAILED {label} codes {start.codes}: {last[:300]}"
    # By the device's clock: the host may be many steps ahead of it.
    lengths = [
        [(line["device_ns"] or line["end_ns"] - line["start_ns"]) / 1e6 for line in timed_lines(start.folder, rank)]
        for rank in ranks
    ]
    mean = max(statistics.mean(own) for own in lengths)
    losses = [line["loss"] for line in timed_lines(start.folder, 0) if line["loss"] is not None]
    pairs.means[start.side].append(mean)
    pairs.losses[start.side] += [statistics.mean(losses)] if losses else []
    if len(runs) > 1:
        as_point(start, args.out / "points" / start.run.name)
    return f"ok {label} {mean:.2f} ms"


def as_point(start: Start, target: Path) -> None:
    """The point's folder, from a start that was timed and then traced."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    write_json(target / "point.json", Job(sweep="labelled", point_id=start.point.id, settings=start.point.settings()))
    for folder in (start.folder, start.folder.traced):
        (target / folder.kind).mkdir()
        for pattern in ("steps-*", "rank*.result.json", "trace-*.json.gz"):
            for path in folder.path.glob(pattern):
                shutil.copy(path, target / folder.kind)
    ok = RunEntry(status="ok")
    record = Record(
        point_id=start.point.id,
        sweep="labelled",
        settings=start.point.settings(),
        status="ok",
        runs=Runs(timed=ok, traced=RunEntry(status="ok", same_start=True)),
        tracer=TracerUse(used="kineto", reason="in the start that was timed"),
        nvml=NvmlUse(available=False, reason="not sampled: starts are forked"),
        device="cuda" if start.gpus else "cpu",
        backend="nccl" if start.gpus else "gloo",
        world_size=start.run.ranks,
        hosts=[facts.host()],
    )
    write_json(target / "record.json", record)


def keep(pairs: Pairs, args: argparse.Namespace) -> None:
    content = {"ms": pairs.means, "loss": pairs.losses, "gpus": pairs.gpus}
    target = args.out / "pairs" / f"{pairs.run.name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(content) + "\n")


def gain(pairs: Pairs, sides: list[str]) -> str:
    starts = zip(*(pairs.means[side] for side in sides), strict=False)
    each = [100 * (1 - b / a) for a, *others in starts for b in others]
    if not each:
        return f"{pairs.run.name}: no pair"
    listed = ", ".join(f"{g:.1f}" for g in each)
    return f"{pairs.run.name}: {sides[1]} gives {statistics.mean(each):.1f} % ({listed})"


def measure_all(waiting: list[Pairs], args: argparse.Namespace) -> int:
    """Starts that failed."""
    begun, free, bad = time.monotonic(), list(range(args.gpus)), 0
    running: list[tuple[Pairs, Start]] = []
    while waiting or running:
        over = time.monotonic() - begun > args.seconds
        if over:
            waiting = []
        for pairs in list(waiting):
            if not args.gpus and running:
                break
            if len(free) < (pairs.run.ranks if args.gpus else 0):
                break  # in order, so that a run on all GPUs gets its turn
            waiting.remove(pairs)
            pairs.gpus, free = (free[: pairs.run.ranks], free[pairs.run.ranks :]) if args.gpus else ([], free)
            running.append((pairs, begin(pairs.run, *pairs.waiting.pop(0), pairs.gpus, args)))
        for pairs, start in [one for one in running if is_over(one[1])]:
            running.remove((pairs, start))
            line = conclude(start, pairs, args)
            bad += line.startswith("FAILED")
            print(f"[{time.monotonic() - begun:.0f} s] {line}", flush=True)
            keep(pairs, args)
            if pairs.waiting and not over and not (line.startswith("FAILED") and not pairs.means[start.side]):
                running.append((pairs, begin(pairs.run, *pairs.waiting.pop(0), pairs.gpus, args)))
            else:
                print(gain(pairs, args.sides), flush=True)
                free = sorted(free + pairs.gpus)
        time.sleep(POLL_S)
    return bad


def chosen(args: argparse.Namespace) -> Iterator[ScriptRun]:
    """Those that are wanted, and are not there yet; last those that take time to compile."""
    runs = scripts.load(args.list)
    for run in sorted(
        runs, key=lambda run: ("compile" in str([getattr(run, side) for side in args.sides]), -run.ranks)
    ):
        if (args.names and run.name not in args.names.split(",")) or ("tried" in args.sides and not run.tried):
            continue
        if (args.gpus and run.ranks > args.gpus) or run.ranks not in args.ranks:
            continue
        if not (args.out / "pairs" / f"{run.name}.json").exists() or args.again:
            yield run


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.labelled.pairs", description="Measure what fixes of scripts give.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--peers", type=Path, required=True, help="folder with the repositories of others")
    parser.add_argument("--images", type=Path, required=True, help="folder of pictures (scripts/make_data.py)")
    parser.add_argument("--list", type=Path, default=scripts.LIST)
    parser.add_argument("--names", help="these runs only, with commas between them")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="runs of so many ranks")
    parser.add_argument("--gpus", type=int, default=2, help="0: on the CPU")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=["slow", "fix", "tried"], default=["slow", "fix"])
    parser.add_argument("--seconds", type=float, default=500.0, help="begin no start after so long")
    parser.add_argument("--limit-s", type=float, default=120.0, help="for each start")
    parser.add_argument("--again", action="store_true", help="also what OUT has")
    return parser.parse_args()


def main() -> int:
    args = parse()
    os.environ |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    began, runs = time.monotonic(), list(chosen(args))
    load(runs)
    print(f"loaded in {time.monotonic() - began:.0f} s", flush=True)
    return 1 if measure_all([Pairs.of(run, args) for run in runs], args) else 0


if __name__ == "__main__":
    sys.exit(main())
