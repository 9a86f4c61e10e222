"""Rows of the tables `diagnoses` and `remedies` (analysis/tables/diagnoses.py)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.remedies import trials as tried

_Rows = list[dict[str, Any]]


def diagnoses(points: pl.DataFrame, steps: pl.DataFrame, causes: Mapping[str, Sequence[Mapping[str, Any]]]) -> _Rows:
    """The causes of each point that is ok. `causes`: by point, of those that have a diagnosis."""
    times = gpu_seconds(points, steps)
    return [
        {**cause, "point_id": i, "place": place, "remedy": json.dumps(cause["remedy"]), "gpu_s": times.get(i)}
        for i in points.filter(pl.col("status") == "ok")["point_id"]
        for place, cause in enumerate(causes.get(i, ()), 1)
    ]


def trials(points: pl.DataFrame, steps: pl.DataFrame, rounds: Sequence[Mapping[str, Any]]) -> _Rows:
    """What came of each trial of these rounds."""
    tried_before = tried.earlier_trials(rounds)
    gains = tried.gains([trial for _, trial in tried_before], points, steps)
    times = gpu_seconds(points, steps)
    return [
        {
            **dataclasses.asdict(trial),
            **dataclasses.asdict(gain),
            "predicted": trial.share,
            "predicted_low": trial.share_low,
            "predicted_high": trial.share_high,
            "round": number,
            "remedy": json.dumps(trial.remedy),
            "gain": gain.value,
            "gain_low": gain.low,
            "gain_high": gain.high,
            "gpu_s": times.get(trial.point_id),
        }
        for (number, trial), gain in zip(tried_before, gains, strict=True)
    ]


def gpu_seconds(points: pl.DataFrame, steps: pl.DataFrame) -> dict[str, float]:
    """GPU time of each point's timed steps (those of its slowest rank), s; on CPUs that of its ranks."""
    gpus = dict(points.select("point_id", "world_size").iter_rows())
    return {
        i: float(Evidence(steps=own).unseen.slowest_ms.to_numpy().sum()) / 1e3 * gpus[i]
        for i, own in tried.timed_steps(steps).items()
        if gpus.get(i)
    }
