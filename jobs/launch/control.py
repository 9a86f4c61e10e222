"""The control of a point: what the samplers and the tracer cost, as ratios of step times.

A pair of starts: one without any tracer, in which blocks with and without the samplers take turns; one with the tracer
there, idle in some blocks and capturing in others. `cost_pairs` pairs alternate. Steps are in steps-rR.jsonl of
cost-plain-K/ and cost-tracer-K/; analysis/metrics/points/cost.py makes ratios of them.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from jobs.launch.attempt import SKIPPED, Attempt
from jobs.point import plan
from jobs.record import json_lines
from jobs.record.folder import Look


def step_s(folder: Path) -> float:
    """Median step of the timed look on rank 0, s; 0 where there is none."""
    path = Look(folder / "timed").steps(0)
    rows = json_lines.read(path) if path.exists() else []
    spans = [(row["device_ns"] or row["end_ns"] - row["start_ns"]) / 1e9 for row in rows if row["phase"] == "timed"]
    return median(spans) if spans else 0.0


def run(attempt: Attempt, tracer: str | None) -> dict[str, Any]:
    """All starts of the control; its entry in the record. It ends at the first start that fails."""
    point, entry = attempt.point, SKIPPED
    steps = plan.block_steps(point, step_s(attempt.folder))
    plans = {"plain": ("none", plan.control_plain(steps))}
    if tracer:
        plans["tracer"] = (tracer, plan.control_tracer(point, steps, tracer))
    began = None
    for pair in range(point.cost_pairs):
        for half, (used, blocks) in plans.items():
            kind = f"cost-{half}-{pair}"
            entry = attempt.run(kind, used, blocks, samplers=half == "plain") | {"folder": kind}
            began = began or entry["started_ns"]
            for report in (attempt.folder / kind).glob("trace-r*"):
                report.unlink()  # a trace of the control is no evidence of anything
            if entry["status"] != "ok":
                break
        if entry["status"] == "failed":
            break
    return entry if began is None else entry | {"started_ns": began, "wall_s": (entry["ended_ns"] - began) / 1e9}
