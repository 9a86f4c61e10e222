"""The first counted steps of each rank as bars to draw: the table TIMELINE.

Bars of one lane that are closer than a pixel are merged, so that a table of thousands of kernels stays small.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import polars as pl

from nightsweep.analysis.metrics import intervals
from nightsweep.analysis.metrics.steps import selection

STEPS = 2
"""Steps that are drawn: enough to see what repeats."""
PIXELS = 8000
"""Width of a wide screen, four times enlarged: bars closer than a pixel of it are one."""
_KEYS = ["lane", "step", "bar"]
_OF_HOST = {"range": selection.phase_ranges, "call": selection.launching_calls}


def rows(events: selection.Events, windows: pl.DataFrame) -> pl.DataFrame:
    """Bars of one rank: lane, name, start_ns, end_ns, step; origin_ns, the start of its first step on the host; and
    trace_ns, as start_ns, which stays on the trace's clock.

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
    pixel = _pixel(both["start_ns"].min(), both["end_ns"].max())
    bars = pl.concat([_merge(f.with_columns(lane=pl.lit(lane)), pixel) for lane, f in lanes.items()])
    return bars.with_columns(origin_ns=pl.lit(hosts["start_ns"].min(), dtype=pl.Int64), trace_ns="start_ns")


def _pixel(first: object, last: object) -> int:
    """Of a window from its first to its last moment, ns; 0 where it has none."""
    return (last - first) // PIXELS if isinstance(first, int) and isinstance(last, int) else 0


def set_zero(bars: pl.DataFrame) -> pl.DataFrame:
    """Count the times of all ranks' bars from the start of the first step on the earliest rank, which is zero_ns, and
    on the clock of the rank's trace trace_zero_ns."""
    zero = pl.col("origin_ns").min()
    moved = bars.with_columns(
        pl.col("start_ns", "end_ns") - zero, zero_ns=zero, trace_zero_ns=pl.col("trace_ns") - pl.col("start_ns") + zero
    )
    return moved.drop("origin_ns", "trace_ns")


def mark_path(bars: pl.DataFrame, spans: pl.DataFrame, ranks: Collection[int]) -> pl.DataFrame:
    """Bars (table TIMELINE) with `on_path`; one that is on the path in part becomes several. Phases are on none; of
    ranks that were not replayed it is not known.

    Args:
        bars: of one point.
        spans: `rank`, `lane`, `start_ns` and `end_ns` of what is on the path, on the clock of the rank's trace.
        ranks: those that were replayed.
    """
    if bars.is_empty():
        return bars
    # Lags that are closer than a pixel are part of it, as they are of the bars.
    reach = np.array([0, _pixel(bars["start_ns"].min(), bars["end_ns"].max())])
    by_lane = {
        key: intervals.union(own.select("start_ns", "end_ns").to_numpy() + reach) - reach
        for key, own in spans.group_by("rank", "lane")
    }
    return pl.concat(
        own.with_columns(on_path=pl.lit(None, pl.Boolean))
        if key[1] == "range" or key[0] not in ranks
        else _split(own, by_lane.get(key, intervals.empty()))
        for key, own in bars.group_by("rank", "lane", maintain_order=True)
    )


def _split(bars: pl.DataFrame, path: intervals.Intervals) -> pl.DataFrame:
    """The bars of one lane of one rank, cut where the path comes and goes."""
    ever = np.iinfo(np.int64)
    edges = np.concatenate(([ever.min], path.ravel() - bars["trace_zero_ns"][0], [ever.max]))
    start, end = (bars[name].to_numpy() for name in ("start_ns", "end_ns"))
    first, last = np.searchsorted(edges, start, side="right") - 1, np.searchsorted(edges, end, side="left") - 1
    count = np.maximum(0, last - first) + 1
    bar = np.repeat(np.arange(len(bars)), count)
    after = first[bar] + np.arange(len(bar)) - np.repeat(np.cumsum(count) - count, count)  # which edge
    begins, ends = np.maximum(start[bar], edges[after]), np.minimum(end[bar], edges[after + 1])
    return bars[bar].with_columns(start_ns=pl.Series(begins), end_ns=pl.Series(ends), on_path=pl.Series(after % 2 == 1))


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
