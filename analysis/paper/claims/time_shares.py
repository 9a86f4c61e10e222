"""Why a claim may not hold here: where the time of its points goes, side by side."""

from __future__ import annotations

import statistics

import polars as pl

from nightsweep.analysis.paper.claims.claim import Verdict
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.sweep.labels import percent, plural
from nightsweep.analysis.tables.part_names import GROUPS


def where_time_goes(verdict: Verdict, tables: dataset.Tables) -> dict[str, str]:
    """Parts of the step, and kernels a step, in the traces of a claim's points: a line for each level of the setting
    that it compares. None of them has a trace: empty."""
    setting = verdict.claim.by
    rows = tables["breakdown"].filter(pl.col("point_id").is_in(verdict.points))
    level = pl.col(setting) if setting else pl.lit("all of them")
    settings = tables["points"].select("point_id", level=level)
    sides = rows.join(settings, on="point_id").sort("level").partition_by("level", as_dict=True, maintain_order=True)
    return {f"{setting} {level}".strip(): _side(part, tables) for (level,), part in sides.items()}


def _side(rows: pl.DataFrame, tables: dataset.Tables) -> str:
    """One side of the comparison: its points, the parts of their steps, and what they launch."""
    points = rows["point_id"].unique().to_list()
    total = rows["duration_ns"].sum()
    sums = dict(rows.group_by("part").agg(pl.col("duration_ns").sum()).iter_rows())
    shares = {part.replace("_", " "): percent(sums.get(part, 0) / total) for part in GROUPS}
    words = [f"{part} {share}" for part, share in shares.items() if share != percent(0)]
    steps = rows.group_by("point_id", "rank").agg(pl.col("step").n_unique())  # of several the first does not count
    kernels = tables["activities"].filter(pl.col("category") == "compute").join(steps, on=["point_id", "rank"])
    launched = kernels.group_by("point_id", "rank").agg(a_step=pl.col("count").sum() / pl.col("step").first())
    if launched.height:
        words.append(f"{statistics.fmean(launched['a_step']):.0f} kernels a step")
    return f"{', '.join(words)} ({plural(len(points), 'point')})"
