"""From what the rules found to a verdict: no time counted twice, noise left out, what gives most at least first."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from nightsweep.analysis.diagnosis.cause import Cause, Share
from nightsweep.analysis.diagnosis.causes.insufficient_parallelism import host_sync
from nightsweep.analysis.diagnosis.causes.rule import HOST, LAUNCHES
from nightsweep.analysis.diagnosis.causes.rules import RULES
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.replay.path import Path, find_path
from nightsweep.analysis.diagnosis.replay.times import replay
from nightsweep.analysis.diagnosis.replay.what_if import Change
from nightsweep.analysis.diagnosis.script_lines import with_lines
from nightsweep.analysis.diagnosis.thresholds import HEALTHY, HEALTHY_SUM, NOISE
from nightsweep.analysis.tables.diagnoses import DIAGNOSES
from nightsweep.analysis.tables.part_names import IDLE

BY_KIND = {rule.kind: rule for rule in RULES}


@dataclass(frozen=True)
class Diagnosis:
    """`healthy`: None where it is not known. `step_ms`: mean time of a step, of which `parts` are the exact parts
    (ms), in the trace; of a point without one, of the timed steps, and no parts. `path`: what decides how long the
    traced steps take; None without a trace of a GPU."""

    evidence: Evidence
    step_ms: float | None
    parts: dict[str, float]
    healthy: bool | None
    causes: tuple[Cause, ...]
    path: Path | None = None

    @property
    def shares_of_ms(self) -> float | None:
        """The time of the step that shares are of; None where none could be timed."""
        known = self.step_ms is not None and self.evidence.step_ns > 0
        return self.evidence.step_ns / 1e6 if known else None

    def as_json(self) -> dict[str, Any]:
        timed = self.evidence.timed_ns
        return {
            "schema": 1,
            "step_ms": self.step_ms,
            "timed_step_ms": None if timed is None else timed / 1e6,
            "shares_of_ms": self.shares_of_ms,
            "steps": self.evidence.traced_count,
            "ranks": self.evidence.traced_ranks,
            "parts": self.parts,
            "unexplained": round(self.path.unexplained, 4) if self.path else None,
            "healthy": self.healthy,
            "causes": [cause.as_json() for cause in self.causes],
        }

    def table(self) -> pl.DataFrame:
        """The causes, a row each, what gives most at least first; columns as in the table `diagnoses` of a sweep."""
        rows = [
            {**cause.as_json(), "place": place, "remedy": json.dumps(dict(cause.remedy))}
            for place, cause in enumerate(self.causes, 1)
        ]
        kinds = {name: column.dtype for name, column in DIAGNOSES.items() if name not in ("point_id", "gpu_s")}
        return pl.DataFrame(rows, schema=kinds)


def judge(e: Evidence) -> Diagnosis:
    """The verdict on a run."""
    causes = [cause for rule in RULES for cause in rule.causes(e)]
    kept = [c for c in cap_shares(e, causes) if BY_KIND[c.kind].remark or c.share >= NOISE.value]
    ranked = tuple(with_lines(e, with_rank(e, cause)) for cause in sorted(kept, key=order))
    traced = bool(e.periods.size)
    timed = None if e.timed_ns is None else e.unseen.mean_ns / 1e6
    step = float(e.periods.mean()) / 1e6 if traced else sum(e.parts.values()) or timed
    total = sum(c.share for c in ranked)
    well = all(c.share < HEALTHY.value for c in ranked) and total < HEALTHY_SUM.value
    path = find_path(e.what_if.graph, replay(e.what_if.graph)) if e.lanes else None
    rest = max(waiting(e.parts) - total, e.left_out)
    known = traced and (not well or (is_known(e) and rest < HEALTHY.value))
    return Diagnosis(e, step, e.parts, well if known else None, ranked, path)


def waiting(parts: Mapping[str, float]) -> float:
    """The share of a step in which devices neither compute nor copy."""
    return sum(parts.get(name, 0.0) for name in (*IDLE, "communication")) / max(sum(parts.values()), 1e-9)


def is_known(e: Evidence) -> bool:
    """Whether the traces tell what a healthy run is known by: the calls that launched its work, and all ranks."""
    return e.heard and all(lane.launches_known for lane in e.lanes)


def with_rank(e: Evidence, cause: Cause) -> Cause:
    """The cause with the rank on which alone its change gives most of what it gives, where there is one: of what hosts
    wait for or do, since messages are of all ranks, and devices run what the script tells all of them. Its evidence
    is then that rank's, not the mean."""
    if cause.rank is None and cause.change is not None and BY_KIND[cause.kind].turn in (HOST, LAUNCHES):
        cause = dataclasses.replace(cause, rank=e.rank_of(cause.change))
    told = cause.evidence_of(cause.rank) if cause.evidence_of else ()
    return dataclasses.replace(cause, evidence=(*told, *cause.evidence), evidence_of=None)


def cap_shares(e: Evidence, causes: list[Cause]) -> list[Cause]:
    """The causes with shares cut so that no time counts twice, in the order of their rules' turns: what is replayed is
    replayed on top of the causes before it, and all add up to no more than the step."""
    if not e.periods.size:
        return causes
    left, made, out = 1.0, list[Change](), []
    for cause in sorted(causes, key=_turn):
        share = cause.share
        if cause.change is not None and share >= NOISE.value:
            share = min(share, e.gain(*made, then=cause.change).value + cause.unseen)
            made.append(cause.change)
        share = min(share, left)
        left -= share
        left_of = share / cause.share if cause.share else 1.0
        out.append(dataclasses.replace(cause, gain=Share(share, cause.low * left_of, cause.high * left_of)))
    return out


def order(cause: Cause) -> tuple[float, float]:
    """To sort causes by: what gives most at least comes first; where that is noise, what may give most."""
    return -cause.low if cause.low >= NOISE.value else 0.0, -cause.share


def _turn(cause: Cause) -> tuple[int, float]:
    turn = BY_KIND[cause.kind].turn
    if turn == LAUNCHES:  # one rule, whose second cause is on top of its first
        return turn, 0.0
    # Where the work that a wait is for gives as much, the wait only shows it.
    shown = NOISE.value if cause.kind == host_sync.__name__ else 0.0
    return turn, shown - cause.share
