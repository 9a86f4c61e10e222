"""Remedies tried: which one is next for a point, and what one gained, measured.

A trial is a point, one cause of its diagnosis, and the point with that cause's remedy. Of each point the remedy of the
first cause is tried first. Where it helped, the next round goes on from the remedied point; where it did not, it
tries the point's next cause. It ends where no cause with a remedy is left above `noise`.

The gain is 1 - (time a sample with the remedy) / (time a sample without it), from the timed runs of the two: what the
cause's share said could be given back. Its 95 % interval is that of starts (analysis/sweep/starts.py), as that of
`nightsweep compare`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from nightsweep.analysis.diagnosis import comparison
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.thresholds import LOSS_CHANGE, NOISE
from nightsweep.analysis.sweep.starts import Noise, Starts
from nightsweep.jobs.point.point import Point, complete
from nightsweep.jobs.record.notes import without_effect

VERDICTS = ("helped", "within_noise", "did_not_help", "no_effect", "losses_changed", "failed", "not_run")
"""What came of a remedy. did_not_help: the remedied point is slower; no_effect: nothing in a script answered to any of
its switches, whatever was measured; losses_changed: a script no longer computes the same with the switch that was
imposed on it; failed: it is not ok; not_run: it has not been measured yet, or its point no longer is ok."""
FORESEEN = 0.05
"""A prediction that is no more than this off is right, whatever its interval."""
WIDEST = 0.6
"""An interval that is wider than this cannot be wrong."""


@dataclass(frozen=True)
class Trial:
    """`share` and its interval: of the cause, before. `remedy`: the settings that were changed."""

    point_id: str
    remedied_id: str
    cause: str
    kind: str
    remedy: Mapping[str, Any]
    share: float
    share_low: float | None
    share_high: float | None


@dataclass(frozen=True)
class Gain:
    """Milliseconds a sample (of all ranks) before and after, the gain as a share of the former, and its interval; None
    where one of the two has no timed step."""

    verdict: str
    before_ms: float | None = None
    after_ms: float | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None


def due_trials(
    own: Mapping[str, Point],
    ok: Collection[str],
    causes: Mapping[str, Sequence[Mapping[str, Any]]],
    before: Sequence[tuple[Trial, str]],
) -> list[Trial]:
    """The trials of the next round. `own`: the sweep's points, `ok`: ids of points that were measured, `causes`: of
    each, as schema.json has them, `before`: the trials of earlier rounds with their verdicts."""
    helped = [trial for trial, verdict in before if verdict == "helped"]
    found = dict(own)
    for one in helped:
        found.setdefault(one.remedied_id, apply_remedy(found[one.point_id], one.remedy))
    better = {trial.point_id for trial in helped}
    tried = {(trial.point_id, trial.remedied_id) for trial, _ in before}
    heads = [i for i in found if i in ok and i not in better]
    return [trial for i in heads if (trial := _next(found[i], causes.get(i, ()), tried)) is not None]


def apply_remedy(point: Point, remedy: Mapping[str, Any]) -> Point:
    return complete({**point.settings(), **remedy})


def _next(point: Point, causes: Sequence[Mapping[str, Any]], tried: set[tuple[str, str]]) -> Trial | None:
    """The first cause above noise with a remedy that was not tried on this point."""
    for cause in causes:
        if not cause["remedy"] or cause["share"] < NOISE.value:
            continue
        other = apply_remedy(point, cause["remedy"]).id
        if (point.id, other) not in tried:
            own = {name: cause[name] for name in ("cause", "kind", "remedy", "share", "share_low", "share_high")}
            return Trial(point.id, other, **own)
    return None


def earlier_trials(rounds: Iterable[Mapping[str, Any]]) -> list[tuple[int, Trial]]:
    """All trials of rounds (jobs/sweep/rounds.py has their format), with the round's number."""
    return [(one["round"], Trial(**trial)) for one in rounds for trial in one.get("trials", ())]


def gains(tried: Sequence[Trial], points: pl.DataFrame, steps: pl.DataFrame) -> list[Gain]:
    """What came of each trial, from the tables `points` and `steps`."""
    if not tried:
        return []
    starts = Starts.of(points, steps)
    status = dict(points.select("point_id", "status").iter_rows())
    scripts = set(points.filter(pl.col("workload") == "command")["point_id"])
    timed = timed_steps(steps)
    none = steps.clear()
    notes = dict(points.select("point_id", pl.col("notes").fill_null("")).iter_rows())
    found = [
        gain(
            timed.get(trial.point_id, none),
            timed.get(trial.remedied_id, none),
            (status.get(trial.point_id), status.get(trial.remedied_id)),
            starts.noise(trial.point_id, trial.remedied_id),
            script=trial.point_id in scripts,
        )
        for trial in tried
    ]
    return [
        replace(one, verdict="no_effect")
        if one.value is not None and _is_idle(trial.remedy, notes[trial.remedied_id])
        else one
        for one, trial in zip(found, tried, strict=True)
    ]


def _is_idle(remedy: Mapping[str, Any], notes: str) -> bool:
    return all(without_effect(switch) in notes for switch in remedy)


def timed_steps(steps: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The timed steps of each point whose time is known."""
    known = steps.filter(pl.col("phase") == "timed", pl.col("step_ms").is_not_null())
    return {str(key[0]): own for key, own in known.partition_by("point_id", as_dict=True).items()}


def gain(
    before: pl.DataFrame,
    after: pl.DataFrame,
    statuses: tuple[str | None, str | None],
    noise: Noise,
    *,
    script: bool = False,
) -> Gain:
    """What came of a trial. `before`, `after`: timed steps of the two points, `statuses`: theirs (None: no record),
    `noise`: what starts differ by, `script`: whether their losses must be the same, for the remedy is a switch imposed
    on somebody's script."""
    if statuses[0] != "ok" or statuses[1] in (None, "not_run") or before.is_empty():
        return Gain("not_run")
    if statuses[1] != "ok" or after.is_empty():
        return Gain("failed")
    a, b = Evidence(steps=before), Evidence(steps=after)
    samples = [comparison.samples_of(e) or 1 for e in (a, b)]
    one, other = ([comparison.start_means([e], timed=True)[0] / n] for e, n in zip((a, b), samples, strict=True))
    step = comparison.of_starts(one, other, noise)
    verdict = "within_noise"
    if step.beyond(NOISE.value * step.a):
        verdict = "helped" if step.by < 0 else "did_not_help"
    if script and losses_changed(before, after):
        verdict = "losses_changed"
    ratio, off = step.b / step.a, math.exp(noise.half((1, 1)))
    return Gain(verdict, step.a, step.b, 1 - ratio, 1 - ratio * off, 1 - ratio / off)


def losses_changed(before: pl.DataFrame, after: pl.DataFrame) -> bool:
    """Whether the mean loss of these steps differs by more than LOSS_CHANGE and than chance. Of a script whose losses
    are not known nothing is known against it."""
    losses = [
        one.group_by("step").agg(pl.col("loss").mean()).drop_nulls()["loss"].to_numpy() for one in (before, after)
    ]
    if not all(map(len, losses)):
        return False
    change = comparison.difference(*losses)
    return bool(change.beyond(LOSS_CHANGE.value * abs(change.a)))


def is_foreseen(share: float, low: float | None, high: float | None, gain: float) -> bool:
    """Whether a gain is what was predicted: in the interval, or no more than FORESEEN off."""
    return abs(share - gain) <= FORESEEN or (low is not None and high is not None and low <= gain <= high)


def is_test(low: float | None, high: float | None) -> bool:
    """Whether a prediction says enough to be right or wrong: its interval is no wider than WIDEST."""
    return low is None or high is None or high - low <= WIDEST
