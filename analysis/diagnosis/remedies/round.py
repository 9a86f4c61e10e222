"""One round of remedies of a sweep: which points are to be run with which change (jobs/sweep/rounds.py has the format).

    python -m nightsweep.analysis.diagnosis.remedies.round results/demo --round 1

It reads the sweep's points, those of earlier rounds, and of all of these the tables and diagnoses.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from nightsweep.analysis.diagnosis.remedies import trials
from nightsweep.analysis.ingest.derived import Derived
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.sweep import rounds


def plan_round(results: Path, number: int) -> dict[str, Any]:
    """The content of a round's file."""
    sweep = json.loads((results / "sweep.json").read_text())
    earlier = [json.loads(rounds.file(results, rounds.REMEDIES, n).read_text()) for n in range(1, number)]
    known = {p["point_id"]: complete(p["settings"]) for one in (sweep, *earlier) for p in one["points"]}
    derived = Derived(results / "derived")
    points, steps = (derived.table(name, list(known)) for name in ("points", "steps"))
    before = [trial for _, trial in trials.earlier_trials(earlier)]
    verdicts = [gain.verdict for gain in trials.gains(before, points, steps)]
    now = trials.due_trials(
        {point["point_id"]: known[point["point_id"]] for point in sweep["points"]},
        set(points.filter(pl.col("status") == "ok")["point_id"]),
        derived.causes(list(known)),
        list(zip(before, verdicts, strict=True)),
    )
    new = {t.remedied_id: trials.apply_remedy(known[t.point_id], t.remedy) for t in now if t.remedied_id not in known}
    return {
        "name": sweep["name"],
        "alert": sweep["alert"],
        "points": [{"point_id": i, "settings": point.settings()} for i, point in new.items()],
        "trials": [dataclasses.asdict(trial) for trial in now],
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nightsweep.analysis.diagnosis.remedies.round", description="Plan a round of remedies."
    )
    parser.add_argument("results", type=Path, help="folder of the sweep's results")
    parser.add_argument("--round", type=int, required=True, help="number of the round, from 1")
    args = parser.parse_args(argv)
    made = plan_round(args.results, args.round)
    rounds.write(args.results, rounds.REMEDIES, args.round, made)
    print(f"round {args.round}: {len(made['trials'])} remedies to try, {len(made['points'])} points to run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
