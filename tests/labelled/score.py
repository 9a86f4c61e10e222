"""How often the diagnosis of the labelled scripts is right: the first cause, and what it predicts that a fix gives.

    python -m tests.labelled.score [--points DIR] [--half tune] [--bare] [--names a,b] [--causes 4]

DIR has a folder a run, as pairs.py leaves them; else the kept runs are scored. What fixes gave is
tests/data/scripts/pairs.json; what the remedy of the first cause gave where that is a setting and not the label's fix,
tried.json. With --bare the diagnosis has the traces alone: no settings, no record, no timed steps. Else, of kept runs,
the exit status is 1 where other ones are missed than misses.py has.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

from nightsweep.analysis.diagnosis.remedies import trials
from tests.labelled import packed, scripts
from tests.labelled.misses import NOT_FIRST, NOT_GIVEN, OFF
from tests.labelled.scripts import ScriptRun

KEPT = Path(__file__).parents[1] / "data/scripts"
PAIRS, TRIED = KEPT / "pairs.json", KEPT / "tried.json"
HALVES = tuple(dict.fromkeys(run.half for run in scripts.load()))


def measured(path: Path = PAIRS, side: str = "fix") -> dict[str, float]:
    """The share that each measured fix gave: the mean over pairs of starts that ran one after the other."""
    found = {}
    for name, pairs in json.loads(path.read_text()).items():
        times = pairs.get("ms", {"slow": [], side: []})  # none of what failed
        each = [1 - fix / slow for slow, fix in zip(times["slow"], times[side], strict=False)]
        if each:
            found[name] = statistics.mean(each)
    return found


def diagnose(job: tuple[Path, bool]) -> dict[str, Any]:
    """In a process of its own: `nightsweep diagnose --json` of the folder, or of its traces."""
    from nightsweep.analysis.diagnosis import verdict
    from nightsweep.analysis.diagnosis.evidence import sources

    folder, bare = job
    with tempfile.TemporaryDirectory() as scratch:
        if folder.resolve().parent == KEPT.resolve():
            folder = packed.unpacked(folder, Path(scratch))
        traces = sorted(folder.glob("traced/trace-r*"))
        return verdict.judge(sources.gather(traces if bare else [folder])).as_json()


MOST = 8
"""Processes: each takes half a gigabyte."""


def diagnosed(jobs: Sequence[tuple[Path, bool]]) -> list[dict[str, Any]]:
    """`diagnose` of each, in processes that keep to a core each: where Polars' one thread is woken on another core than
    the one that waits for it, the same work takes a quarter longer."""
    context, cores = get_context("spawn"), sorted(os.sched_getaffinity(0))[:MOST]
    free = context.SimpleQueue()
    for core in cores:
        free.put(core)
    with ProcessPoolExecutor(len(cores), context, initializer=_keep_to_one, initargs=(free,)) as pool:
        return list(pool.map(diagnose, jobs))


def _keep_to_one(free: SimpleQueue[int]) -> None:
    os.sched_setaffinity(0, {free.get()})


def is_hit(cause: dict[str, Any] | None, share: float) -> bool:
    """Whether what was predicted is what was measured."""
    told = (cause["share"], cause["share_low"], cause["share_high"]) if cause else (0.0, 0.0, 0.0)
    return trials.is_foreseen(*told, share)


def judged(run: ScriptRun, found: dict[str, Any], fixes: dict[str, float]) -> tuple[bool | None, bool | None, Any]:
    """Whether the first cause is right; whether the prediction is; the cause that stands for the label. None: the label
    has no such question."""
    own = [cause for cause in found["causes"] if cause["share"] >= 0.01]
    fix = fixes.get(run.name)
    kinds = run.kinds or ["recompute_or_unfused"]
    of_label = next((cause for cause in own if cause["kind"] in kinds), None)
    predicted = None if fix is None else is_hit(of_label, fix)
    if run.void:
        return None, predicted, of_label
    if not run.kinds:
        allowed = {"recompute_or_unfused"} if fix is not None and fix >= 0.1 else set()
        return all(cause["share"] < 0.1 or cause["kind"] in allowed for cause in own), predicted, of_label
    first = own[0] if own else None
    right = first is not None and first["kind"] in run.kinds and run.rank in (None, first["rank"])
    return right, predicted, of_label


def remedy_as_predicted(run: ScriptRun, found: dict[str, Any], tried: dict[str, float]) -> bool | None:
    """Whether the setting that was tried gave what is predicted by the first cause whose remedy it is. None: nothing
    was tried, or it is nobody's remedy."""
    causes = (cause for cause in found["causes"] if cause["share"] >= 0.01 and cause["remedy"] == run.tried)
    first = next(causes, None) if run.name in tried else None
    return None if first is None else is_hit(first, tried[run.name])


def as_good(run: ScriptRun, found: dict[str, Any], fixes: dict[str, float], tried: dict[str, float]) -> bool:
    """Whether the remedy of the first cause was measured to give as much as the label's fix, or hardly less."""
    first = next((cause for cause in found["causes"] if cause["share"] >= 0.01), None)
    known = first is not None and first["remedy"] == run.tried and run.name in tried and run.name in fixes
    return known and tried[run.name] >= fixes[run.name] - trials.FORESEEN


def by_kind(rows: list[tuple[str, float, bool, float]]) -> Iterator[str]:
    """A line for each kind. `rows`: the label's kind, measured less predicted, whether that is a hit, half width."""
    for kind in sorted({row[0] for row in rows}):
        own = [row for row in rows if row[0] == kind]
        errors, hits, widths = ([row[place] for row in own] for place in (1, 2, 3))
        error, width = (100 * statistics.median(of) for of in (errors, widths))
        hit = f"{sum(hits):>3} of {len(own):>2} as predicted"
        yield f"{kind:<24}{hit}; measured less predicted, median: {error:+.0f}; half width, median: {width:.0f}"


def shown(cause: dict[str, Any]) -> str:
    low, high = (100 * (cause[name] or 0) for name in ("share_low", "share_high"))
    rank = "" if cause["rank"] is None else f" of rank {cause['rank']}"
    return f"{cause['kind']}{rank} {100 * cause['share']:.0f} ({low:.0f} to {high:.0f})"


def main() -> int:
    args = parse()
    os.environ["POLARS_MAX_THREADS"] = "1"
    halves = {"both": HALVES[:2], "all": HALVES}.get(args.half, (args.half,))
    named = args.names.split(",") if args.names else None
    runs = [run for run in scripts.load() if run.half in halves and (named is None or run.name in named)]
    runs = [run for run in runs if (args.points / run.name).is_dir()]
    answers = diagnosed([(args.points / run.name, args.bare) for run in runs])
    fixes, tried = measured(), measured(TRIED, "tried")
    rights, hits, widths, equal, rows, remedies, others = [], [], [], 0, [], [], []
    for run, found in zip(runs, answers, strict=True):
        right, hit, cause = judged(run, found, fixes)
        rights += [] if right is None else [right]
        hits += [] if hit is None else [hit]
        widths += [] if hit is None or cause is None else [(cause["share_high"] - cause["share_low"]) / 2]
        if hit is not None:
            told, low, high = (cause[n] if cause else 0.0 for n in ("share", "share_low", "share_high"))
            kind = cause["kind"] if cause else (run.kinds or ["recompute_or_unfused"])[0]
            rows.append((kind, fixes[run.name] - told, hit, (high - low) / 2))
        equal += right is False and as_good(run, found, fixes, tried)
        remedies += [] if (own := remedy_as_predicted(run, found, tried)) is None else [own]
        for what, seen, missed in (
            ("first cause", right, NOT_FIRST), ("prediction", hit, OFF), ("remedy", own, NOT_GIVEN),
        ):  # fmt: skip
            if seen is not None and seen == (run.name in missed):
                others.append(f"{run.name}: misses.py has its {what} otherwise: {'right' if seen else 'missed'} now")
        gave = f"{100 * fixes[run.name]:.0f}" if run.name in fixes else "-"
        marks = "".join({True: "+", False: "MISS", None: "."}[one].ljust(5) for one in (right, hit))
        causes = "; ".join(shown(cause) for cause in found["causes"][: args.causes] if cause["share"] >= 0.01)
        print(f"{marks}{run.name:<22}{'/'.join(run.kinds) or 'healthy':<36} fix {gave:>3} | {causes}")
    print("\n".join(by_kind(rows)))
    print(f"{sum(remedies)} of {len(remedies)} remedies, imposed as settings, gave what is predicted")
    print(f"{equal} of the other first causes have a remedy that gave as much as the label's fix, or 5 points less")
    print(f"first cause right: {sum(rights)} of {len(rights)}; prediction right: {sum(hits)} of {len(hits)}; "
          f"half width of its interval, median: {100 * statistics.median(widths or [0]):.0f} points")  # fmt: skip
    if args.bare or args.points != KEPT:
        return 0
    print("\n".join(others))
    return 1 if others else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.labelled.score", description="Score the diagnosis of scripts.")
    parser.add_argument("--points", type=Path, default=KEPT)
    parser.add_argument("--half", choices=[*HALVES, "both", "all"], default="tune")
    parser.add_argument("--bare", action="store_true", help="traces alone")
    parser.add_argument("--names", help="these runs only")
    parser.add_argument("--causes", type=int, default=4, help="number of causes to print for each run")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
