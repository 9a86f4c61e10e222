"""The control of a point: what the samplers and the tracer cost, as ratios of step times.

A pair of starts: one without any tracer, in which blocks with and without the samplers take turns; one with the tracer
there, idle in some blocks and capturing in others. `cost_pairs` pairs alternate. Steps are in steps-rR.jsonl of
cost-plain-K/ and cost-tracer-K/; analysis/metrics/points/cost.py makes ratios of them.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import msgspec

from nightsweep.jobs.launch.attempt import Attempt, RunEnd
from nightsweep.jobs.point import plan
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import read_lines
from nightsweep.jobs.record.launch_files import StepLine
from nightsweep.jobs.sweep.order import TracerName


def step_s(folder: Path) -> float:
    """Median step of the timed run on rank 0, s; 0 where there is none."""
    spans = [seconds(line) for line in read_lines(RunFolder(folder / "timed").steps(0), StepLine)]
    known = [span for span in spans if span is not None]
    return median(known) if known else 0.0


def seconds(line: StepLine) -> float | None:
    """Length of a timed step, by the device where there is one; None for another step."""
    if line.phase != "timed" or line.start_ns is None or line.end_ns is None:
        return None
    return (line.device_ns or line.end_ns - line.start_ns) / 1e9


def starts(attempt: Attempt, tracer: TracerName | None) -> list[tuple[str, TracerName, list[plan.Block]]]:
    """Folder, tracer and blocks of every start, in order."""
    point = attempt.point
    steps = plan.block_steps(point, step_s(attempt.folder))
    found: list[tuple[str, TracerName, list[plan.Block]]] = []
    for pair in range(point.cost_pairs):
        found.append((f"cost-plain-{pair}", "none", plan.control_plain(steps)))
        if tracer:
            found.append((f"cost-tracer-{pair}", tracer, plan.control_tracer(point, steps, tracer)))
    return found


def run(attempt: Attempt, tracer: TracerName | None) -> RunEnd:
    """All starts of the control as one run. It ends at the first start that fails."""
    ends: list[RunEnd] = []
    for kind, used, blocks in starts(attempt, tracer):
        ends.append(attempt.run(kind, used, blocks, samplers=kind.startswith("cost-plain")))
        for report in (attempt.folder / kind).glob("trace-r*"):
            report.unlink()  # a trace of the control is no evidence of anything
        if ends[-1].run.status != "ok":
            break
    began, last = ends[0].run.started_ns, ends[-1]
    wall_s = None if began is None or last.run.ended_ns is None else (last.run.ended_ns - began) / 1e9
    return RunEnd(msgspec.structs.replace(last.run, started_ns=began, wall_s=wall_s), last.failure)
