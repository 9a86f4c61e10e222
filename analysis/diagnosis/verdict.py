"""From what the rules found to a verdict: no time counted twice, noise left out, what gives most at least first."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from analysis.diagnosis.cause import Cause
from analysis.diagnosis.causes.rules import RULES
from analysis.diagnosis.evidence.evidence import Evidence
from analysis.diagnosis.replay.what_if import Change
from analysis.diagnosis.script_lines import with_lines
from analysis.diagnosis.thresholds import HEALTHY, HEALTHY_SUM, NOISE

REMARKS = frozenset(rule.kind for rule in RULES if rule.remark)
"""Kinds that are reported even where their share is 0."""


PLACE = {
    **dict.fromkeys(("loader_wait", "cpu_preprocessing", "host_sync", "host_work", "h2d_pageable", "h2d_exposed"), 0),
    **dict.fromkeys(("allocator_churn", "memory_pressure"), 0),
    "launch_bound": 1,
    **dict.fromkeys(("straggler", "small_messages", "slow_interconnect", "exposed_communication"), 2),
}
LAST = 3
"""What counts first where two causes give back the same time: what the host waits for, then that it launches slowly at
all, then what ranks wait for, each the largest first; then what the devices could compute faster, the surest first."""


@dataclass(frozen=True)
class Diagnosis:
    """`healthy`: None where it is not known. `step_ms`: mean time of a step, of which `parts` are the exact parts
    (ms), in the trace; of a point without one, the median timed step, and no parts."""

    evidence: Evidence
    step_ms: float | None
    parts: dict[str, float]
    healthy: bool | None
    causes: tuple[Cause, ...]

    def as_json(self) -> dict[str, Any]:
        timed = self.evidence.timed_ns
        return {
            "schema": 1,
            "step_ms": self.step_ms,
            "timed_step_ms": None if timed is None else timed / 1e6,
            "steps": self.evidence.traced_count,
            "ranks": self.evidence.traced_ranks,
            "parts": self.parts,
            "unexplained": round(self.evidence.unexplained, 4) if self.evidence.lanes else None,
            "healthy": self.healthy,
            "causes": [cause.as_json() for cause in self.causes],
        }


def judge(e: Evidence) -> Diagnosis:
    """The verdict on a run."""
    causes = [cause for rule in RULES if e.lanes or not rule.traced for cause in rule.find(e)]
    kept = [c for c in cap_shares(e, causes) if c.kind in REMARKS or c.share >= NOISE.value]
    ranked = tuple(with_lines(e, cause) for cause in sorted(kept, key=lambda c: (-c.least, -c.share)))
    traced = bool(e.periods.size)
    timed = None if e.timed_ns is None else e.timed_ns / 1e6
    step = float(e.periods.mean()) / 1e6 if traced else sum(e.parts.values()) or timed
    total = sum(c.share for c in ranked)
    well = all(c.share < HEALTHY.value for c in ranked) and total < HEALTHY_SUM.value
    return Diagnosis(e, step, e.parts, None if not traced or (well and not is_known(e)) else well, ranked)


def is_known(e: Evidence) -> bool:
    """Whether the traces tell what a healthy run is known by: the calls that launched its work, and all ranks."""
    return e.heard and all(lane.launches_known for lane in e.lanes)


def cap_shares(e: Evidence, causes: list[Cause]) -> list[Cause]:
    """The causes with shares cut so that no time counts twice, in the order of PLACE: what is replayed is replayed on
    top of the causes before it, and the rest adds up to no more than its pool."""
    if not e.periods.size:
        return causes
    left = {"compute": e.share(e.part("compute")).value, "communication": e.share(e.part("communication")).value}
    made: list[Change] = []
    out = []
    for cause in sorted(causes, key=_turn):
        share = min(cause.share, left[cause.pool]) if cause.pool in left else cause.share
        if cause.change is not None and share >= NOISE.value:
            share = min(share, e.gain(*made, then=cause.change).value + unseen(e, cause))
            made.append(cause.change)
        if cause.pool in left:
            left[cause.pool] -= share
        left_of = share / cause.share if cause.share else 1.0
        low, high = (None if edge is None else edge * left_of for edge in (cause.low, cause.high))
        out.append(dataclasses.replace(cause, share=share, low=low, high=high))
    return out


def _turn(cause: Cause) -> tuple[int, float]:
    place = PLACE.get(cause.kind, 0 if cause.kind == "small_batch" and cause.change else LAST)
    return place, -(cause.least if place == LAST else cause.share)


def unseen(e: Evidence, cause: Cause) -> float:
    """The share that the trace does not have in it: waits for batches of the timed steps."""
    return e.unseen_wait / e.step_ns if cause.kind in ("loader_wait", "cpu_preprocessing") else 0.0
