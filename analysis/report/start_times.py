"""What the page compares two points by, as `nightsweep compare` does (page/comparison.js has the formula again): the
mean timed step of each, its settings and host, and how far starts differ."""

from __future__ import annotations

from typing import Any

import polars as pl

from nightsweep.analysis.diagnosis.thresholds import NOISE
from nightsweep.analysis.metrics.points.slowest_rank import slowest_rank
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.sweep.starts import DEVICE, LEAST_OWN, MIXED, Noise, known_noise

DIGITS = 10
"""Of a mean step: more than any text shows."""
_ACTIVE = (DEVICE, MIXED, 0.0, None)
"""SM activity, %, of each kind of pair that starts.TABLE knows."""


def start_times(tables: dataset.Tables, points: pl.DataFrame) -> dict[str, Any]:
    """Of points, in their order.

    Returns:
        mean_ms, steps, samples: of the timed steps of the slowest rank, and samples of all ranks in a step; null where
        there is none. alike: one number for all starts of the same settings. host: one number for all that ran on one
        host on one day; null where that is not known. active: mean SM activity, %; null where it was not sampled.
        noise: at least so much of A is noise. quantiles: Student's t of 1, 2, ... degrees of freedom. least: degrees of
        freedom that repeats must have. limits: of SM activity, between the rows of `table`: half of the 95 % interval
        of one start's logarithm, and from what it is known, on several hosts and on one.
    """
    names = [name for name in dataset.SETTINGS if name not in dataset.ASIDE]
    host = pl.struct(pl.col("hosts"), pl.col("started_at").str.slice(0, 10)).rank("dense")
    own = points.select(
        "point_id",
        alike=pl.struct(names).rank("dense"),
        host=pl.when(pl.col("hosts").list.len() > 0).then(host),
        active=pl.when(pl.col("sm_active_percent").is_finite()).then("sm_active_percent"),
    ).join(_times(tables), on="point_id", how="left", maintain_order="left")
    columns = own.drop("point_id").to_dict(as_series=False)
    most = int(own["alike"].value_counts()["count"].top_k(2).sum() or 0)
    quantiles = [Noise(1.0, freedom, "").half((1,)) for freedom in range(1, most + 1)]
    known = [[known_noise(active, one_host=one_host) for one_host in (False, True)] for active in _ACTIVE]
    fixed = {
        "noise": NOISE.value,
        "quantiles": quantiles,
        "least": LEAST_OWN,
        "limits": [DEVICE, MIXED],
        "table": [[[noise.half((1,)), noise.source] for noise in hosts] for hosts in known],
    }
    return columns | fixed


def _times(tables: dataset.Tables) -> pl.DataFrame:
    """point_id, mean_ms, steps, samples."""
    timed = tables.scan("steps").filter(pl.col("phase") == "timed")
    samples = timed.group_by("point_id", "step").agg(pl.col("samples").sum())
    means = slowest_rank(timed, "point_id").group_by("point_id").agg(
        mean_ms=pl.col("step_ms").sort_by("step").mean().round_sig_figs(DIGITS), steps=pl.len()
    )  # fmt: skip
    means = means.join(samples.group_by("point_id").agg(pl.col("samples").max()), on="point_id")
    return means.filter(pl.col("mean_ms") > 0, pl.col("mean_ms").is_finite()).collect()
