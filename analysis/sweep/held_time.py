"""Where the time went in which a sweep held its GPUs: sums of the table `phases`.

GPU time is that of GPUs, or of ranks on CPUs. An attempt whose end is not known counts nowhere.
"""

from __future__ import annotations

import polars as pl

from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.sweep.dataset import Tables
from nightsweep.analysis.tables.phases import NOT_HELD, USE_OF, USES

KINDS = ("first starts", "repeats", "remedies", "failed points", "lost attempts")
"""What the time was for, by point: the sweep's own points that are ok, first and further repeats; points that remedies
added and that are ok; points that are not ok; and, of any point, attempts whose result was not kept."""
_ORDER = pl.col("use").replace_strict({use: place for place, use in enumerate(USES)}, return_dtype=pl.Int64)


def held(tables: Tables) -> pl.DataFrame:
    """The rows of `phases` in which GPUs were held and whose length is known."""
    return tables["phases"].filter(pl.col("use") != NOT_HELD, pl.col("gpu_s").is_not_null())


def by_use(tables: Tables) -> pl.DataFrame:
    """use, gpu_s and its share of all held GPU time, in the order of USES; without what took no time."""
    # In order, for sums of floats depend on it, and the same tables give the same figure.
    sums = held(tables).group_by("use", maintain_order=True).agg(pl.col("gpu_s").sum()).filter(pl.col("gpu_s") > 0)
    return sums.sort(_ORDER).with_columns(share=pl.col("gpu_s") / pl.col("gpu_s").sum())


def by_kind(tables: Tables) -> pl.DataFrame:
    """kind (of KINDS), points (how many had such time), use and gpu_s, in the order of both. Of points that failed, the
    uses are those of their phases, so that one sees how far they came."""
    # Of which night a repeat is, is in its number too: the first start of a set may have any.
    settings = [name for name in dataset.SETTINGS if name not in dataset.ASIDE]
    about = tables["points"].sort("started_at", "repeat", "point_id", nulls_last=True)
    is_ok = pl.col("status") == "ok"
    about = about.with_columns(again=is_ok & ((is_ok.cum_sum() - is_ok).over(*settings, "round") > 0))
    about = about.select("point_id", "status", "round", "again")
    kind = (
        pl.when(pl.col("use") == "lost")
        .then(pl.lit("lost attempts"))
        .when(pl.col("status") != "ok")
        .then(pl.lit("failed points"))
        .when(pl.col("round").is_not_null())
        .then(pl.lit("remedies"))
        .when("again")
        .then(pl.lit("repeats"))
        .otherwise(pl.lit("first starts"))
    )
    came_to = pl.col("phase").replace_strict(USE_OF, default="unknown")
    rows = held(tables).join(about, on="point_id", how="left", maintain_order="left").with_columns(kind=kind)
    rows = rows.with_columns(
        use=pl.when(pl.col("kind") == "failed points").then(came_to).otherwise("use"),
        points=pl.col("point_id").n_unique().over("kind"),
    )
    sums = rows.group_by("kind", "points", "use", maintain_order=True).agg(pl.col("gpu_s").sum())
    sums = sums.filter(pl.col("gpu_s") > 0)
    place = pl.col("kind").replace_strict({kind: n for n, kind in enumerate(KINDS)}, return_dtype=pl.Int64)
    return sums.sort(place, _ORDER)
