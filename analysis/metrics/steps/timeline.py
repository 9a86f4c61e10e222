"""The first counted steps of each rank as bars to draw: the table TIMELINE.

Bars of one lane that are closer than a pixel are merged, so that a table of thousands of kernels stays small.
"""

from __future__ import annotations

import polars as pl

from analysis.metrics.steps import selection

STEPS = 2
"""Steps that are drawn: enough to see what repeats."""
PIXELS = 8000
"""Width of a wide screen, four times enlarged: bars closer than a pixel of it are one."""
_KEYS = ["lane", "step", "bar"]
_OF_HOST = {"range": selection.phase_ranges, "call": selection.launching_calls}


def rows(events: selection.Events, windows: pl.DataFrame) -> pl.DataFrame:
    """Bars of one rank: lane, name, start_ns, end_ns, step, and origin_ns, the start of its first step on the host.

    Args:
        events: the tables of one rank.
        windows: its table of that name.
    """
    counted = windows.filter("counted").group_by("step").agg(
        pl.col("start_ns", "host_start_ns").min(), pl.col("end_ns", "host_end_ns").max()
    ).sort("host_start_ns").head(STEPS)  # fmt: skip
    hosts = counted.select("step", start_ns="host_start_ns", end_ns="host_end_ns")
    lanes = {lane: _cut(frame, counted) for lane, frame in selection.split_by_kind(events).items()}
    lanes |= {name: _cut(own(events), hosts) for name, own in _OF_HOST.items()}
    both = pl.concat([hosts, counted.select("step", "start_ns", "end_ns")])
    first, last = both["start_ns"].min(), both["end_ns"].max()
    pixel = (last - first) // PIXELS if isinstance(first, int) and isinstance(last, int) else 0
    bars = pl.concat([_merge(f.with_columns(lane=pl.lit(lane)), pixel) for lane, f in lanes.items()])
    return bars.with_columns(origin_ns=pl.lit(hosts["start_ns"].min(), dtype=pl.Int64))


def set_zero(bars: pl.DataFrame) -> pl.DataFrame:
    """Count the times of all ranks' bars from the start of the first step on the earliest rank, which is zero_ns."""
    zero = pl.col("origin_ns").min()
    return bars.with_columns(pl.col("start_ns", "end_ns") - zero, zero_ns=zero).drop("origin_ns")


def _cut(frame: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Events with the step in whose window they start, cut at its end."""
    bounds = windows.select("step", window_start="start_ns", window_end="end_ns").sort("window_start")
    found = frame.with_columns(pl.col("name").cast(pl.String)).sort("start_ns", "end_ns", "name")
    placed = found.join_asof(bounds, left_on="start_ns", right_on="window_start", strategy="backward")
    inside = placed.filter(pl.col("start_ns") < pl.col("window_end"))
    return inside.with_columns(end_ns=pl.min_horizontal("end_ns", "window_end"))


def _merge(frame: pl.DataFrame, pixel: int) -> pl.DataFrame:
    # A phase next to another stays a separate bar: only its repetitions (micro-batches) may merge.
    new_name = (pl.col("lane") == "range") & (pl.col("name") != pl.col("name").shift())
    reach = pl.col("end_ns").cum_max().shift()
    new_bar = (pl.col("start_ns") - reach > pixel) | new_name | (pl.col("step") != pl.col("step").shift())
    grouped = frame.with_columns(bar=new_bar.fill_null(True).cast(pl.Int64).cum_sum())
    took = (pl.col("end_ns") - pl.col("start_ns")).sum()
    span = (pl.col("start_ns").min(), pl.col("end_ns").max())
    longest = (
        grouped.group_by(*_KEYS, "name")
        .agg(took.alias("took"))
        .sort("took", "name", descending=[True, False])
        .unique(_KEYS, keep="first", maintain_order=True)
        .drop("took")
    )
    bars = grouped.group_by(_KEYS).agg(*span).join(longest, on=_KEYS)
    return bars.select("lane", "name", "start_ns", "end_ns", "step").sort("step", "start_ns", "end_ns", "name")
