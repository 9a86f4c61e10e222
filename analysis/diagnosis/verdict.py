"""From what the rules found to a verdict: no time counted twice, noise left out, the largest share first."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from analysis.diagnosis.cause import Cause
from analysis.diagnosis.causes.rules import RULES
from analysis.diagnosis.evidence.evidence import Evidence
from analysis.diagnosis.thresholds import HEALTHY, HEALTHY_SUM, NOISE
from analysis.tables.part_names import BUSY, PARTS

REMARKS = frozenset(rule.kind for rule in RULES if rule.remark)
"""Kinds that are reported even where their share is 0."""


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
            "healthy": self.healthy,
            "causes": [cause.as_json() for cause in self.causes],
        }


def judge(e: Evidence) -> Diagnosis:
    """The verdict on a run."""
    causes = [cause for rule in RULES if e.lanes or not rule.traced for cause in rule.find(e)]
    kept = [c for c in cap_shares(e, causes) if c.kind in REMARKS or c.share >= NOISE.value]
    ranked = tuple(sorted(kept, key=lambda c: -c.share))
    traced = bool(e.periods.size)
    timed = None if e.timed_ns is None else e.timed_ns / 1e6
    step = float(e.periods.mean()) / 1e6 if traced else sum(e.parts.values()) or timed
    total = sum(c.share for c in ranked)
    well = all(c.share < HEALTHY.value for c in ranked) and total < HEALTHY_SUM.value
    return Diagnosis(e, step, e.parts, well if traced else None, ranked)


def cap_shares(e: Evidence, causes: list[Cause]) -> list[Cause]:
    """The causes with shares cut so that those of a pool add up to no more than the pool, the largest served first."""
    if not e.periods.size:
        return causes
    left = {
        "idle": sum(e.share(e.part(p)).value for p in PARTS if p.startswith("idle")) + e.unseen_wait.value / e.step_ns,
        "copies": sum(e.share(e.part(p)).value for p in BUSY[2:]),
        "communication": e.share(e.part("communication")).value,
        "compute": e.share(e.part("compute")).value,
    }
    out = []
    for cause in sorted(causes, key=lambda c: -c.share):
        share = min(cause.share, left[cause.pool]) if cause.pool in left else cause.share
        if cause.pool in left:
            left[cause.pool] -= share
        out.append(dataclasses.replace(cause, share=share))
    return out
