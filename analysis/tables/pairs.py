"""The table of a sweep's pairs: what a switch does to the time of a step, with how well that is known."""

from __future__ import annotations

import polars as pl

from nightsweep.analysis.tables.column import Column

PAIRS: dict[str, Column] = {
    "pair": Column(pl.String, "Name in the sweep file.", "sweep.json"),
    "point_id": Column(pl.String, "Id of the first start of the point without the switch.", "sweep.json"),
    "having_id": Column(pl.String, "Id of the first start of the point with it.", "sweep.json"),
    "starts": Column(pl.Int64, "Starts of either point that both have ok and undisturbed.", "steps"),
    "blocks": Column(pl.Int64, "Blocks that these are of: what the interval varies over.", "steps"),
    "without_ms": Column(pl.Float64, "Geometric mean of a step without it (of the slowest rank), ms.", "steps"),
    "having_ms": Column(pl.Float64, "The same with it.", "steps"),
    "ratio": Column(pl.Float64, "Time with it over time without, mean of the blocks' logarithms.", "derived"),
    "ratio_low": Column(pl.Float64, "Lower end of its interval; null with one block.", "derived"),
    "ratio_high": Column(pl.Float64, "Upper end.", "derived"),
    "confidence": Column(
        pl.Float64, "Of the interval: 0.95, or what each look of a sweep with a precision needs for that.", "sweep.json"
    ),
    "half_width": Column(pl.Float64, "Half of the interval, as a share of the ratio.", "derived"),
    "wanted": Column(pl.Float64, "Half width that the sweep asks for; null where it asks for none.", "sweep.json"),
}
"""One row a pair with a start of both of its points."""
