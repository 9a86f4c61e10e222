"""A few steps of one point as they ran: what each rank did, and where its device waits longest."""

from __future__ import annotations

import textwrap
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from nightsweep.analysis.diagnosis.thresholds import NOISE
from nightsweep.analysis.figures import style
from nightsweep.analysis.figures.family import Family, with_ids
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.sweep.labels import percent, short_number

MOST_RANKS = 8
LANES = ("range", "compute", "communication", "copy")
LONG = 0.05
"""Share of the window from which on a wait has room for its length."""


def choose_point(tables: dataset.Tables) -> dict[str, Any] | None:
    """The point that is shown: ok, with a timeline, of the most ranks; among these the one with most to gain
    (`kind`, `share`: its largest finding above the noise, else null), then the first in order."""
    has = tables["timeline"]["point_id"].unique().to_list()
    points = dataset.ok_points(tables).filter(pl.col("point_id").is_in(has))
    above = pl.col("share") >= NOISE.value
    first = tables["diagnoses"].filter(pl.col("place") == 1, above).select("point_id", "kind", "share")
    points = points.join(first, on="point_id", how="left", maintain_order="left")
    order = ["world_size", "share"]
    best = points.sort(order, descending=True, nulls_last=True, maintain_order=True).head(1).to_dicts()
    return best[0] if best else None


def waits(events: pl.DataFrame) -> pl.DataFrame:
    """Per rank, the longest time in which nothing runs on its device between two things that do: start_ns, end_ns."""
    busy = events.filter(~pl.col("lane").is_in(["range", "call"])).sort("rank", "start_ns")
    idle_from = pl.col("end_ns").cum_max().shift().over("rank")
    gaps = busy.select("rank", start_ns=idle_from, end_ns=pl.col("start_ns")).drop_nulls()
    longest = (pl.col("end_ns") - pl.col("start_ns")).arg_max()
    return gaps.group_by("rank").agg(pl.col("start_ns", "end_ns").get(longest)).sort("rank")


def _phase(name: str) -> str | None:
    return next((known for known in style.RANGE_COLOURS if name.startswith(known)), None)


def _lane(axes: Axes, y: int, lane: str, events: pl.DataFrame) -> None:
    spans: dict[str, list[tuple[float, float]]] = {}
    for name, start, end in events.select("name", "start_ns", "end_ns").iter_rows():
        phase = _phase(name) if lane == "range" else None
        if lane != "range" or phase:  # `step N` spans the phases; drawn, it would hide them
            colour = style.RANGE_COLOURS[phase] if phase else style.LANE_COLOURS[lane]
            spans.setdefault(colour, []).append((start / 1e6, (end - start) / 1e6))
    for colour, own in spans.items():
        axes.broken_barh(own, (y - 0.38, 0.76), facecolors=colour, edgecolor="none")


def rows_of(events: pl.DataFrame) -> list[tuple[int, str]]:
    """(rank, lane) of those that are drawn."""
    ranks = events["rank"].unique().sort().to_list()[:MOST_RANKS]
    have = set(events.select("rank", "lane").iter_rows())
    return [(rank, lane) for rank in ranks for lane in LANES if (rank, lane) in have]


def lanes(axes: Axes, events: pl.DataFrame) -> None:
    """Each rank's lanes, one above the other."""
    rows = rows_of(events)
    for y, (rank, lane) in enumerate(rows):
        _lane(axes, y, lane, events.filter((pl.col("rank") == rank) & (pl.col("lane") == lane)))
        if y and rank != rows[y - 1][0]:
            axes.axhline(y - 0.5, color="black", linewidth=0.6)
    for start in events.group_by("step").agg(pl.col("start_ns").min())["start_ns"].sort():
        axes.axvline(start / 1e6, color="black", linewidth=0.6, linestyle=":")
    axes.set_yticks(range(len(rows)), [f"rank {rank} {'phases' if lane == 'range' else lane}" for rank, lane in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, max(events["end_ns"]) / 1e6)
    axes.set_xlabel("Time in the trace (ms); dotted: a step starts")


def _waits(axes: Axes, events: pl.DataFrame, wide: bool) -> None:
    """Arrows in the lanes of compute, as long as the longest waits, with their lengths; above them where they are too
    short for that."""
    rows, whole = rows_of(events), max(events["end_ns"])
    for rank, start, end in waits(events).iter_rows():
        if (rank, "compute") in rows and end - start >= LONG * whole:
            y, ends = rows.index((rank, "compute")), (start / 1e6, end / 1e6)
            arrow: dict[str, Any] = {"arrowstyle": "<->", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (ends[0], y), (ends[1], y), arrowprops=arrow)
            text = f"{'idle, ' if wide else ''}{short_number(ends[1] - ends[0])} ms"
            place: dict[str, Any] = {"ha": "center", "fontsize": style.SMALLEST_PT}
            if (end - start) / whole >= (0.1 if wide else 0.16):
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
                axes.text(sum(ends) / 2, y, text, va="center", bbox=box, **place)
            else:
                axes.text(sum(ends) / 2, y - 0.1, text, va="bottom", **place)


def legend(made: Figure, events: pl.DataFrame) -> None:
    """What the colours of these events mean."""
    lanes = set(events["lane"])
    phases = {_phase(name) for name in events.filter(pl.col("lane") == "range")["name"]}
    ranges = {p: c for p, c in style.RANGE_COLOURS.items() if p in phases}
    used = ranges | {lane: c for lane, c in style.LANE_COLOURS.items() if lane in lanes}
    columns = len(used) if made.get_figwidth() > style.ONE_COLUMN_IN else 4
    made.legend(handles=[Patch(color=c, label=n) for n, c in used.items()], loc="outside upper center", ncols=columns)


def paint(_points: pl.DataFrame, tables: dataset.Tables, width_in: float) -> Figure:
    point = choose_point(tables)
    assert point is not None  # as there are points
    events = tables["timeline"].filter(pl.col("point_id") == point["point_id"])
    made = style.figure(width_in, 0.16 * len(rows_of(events)) + 1.05)
    axes = made.subplots()
    lanes(axes, events)
    total = events["rank"].n_unique()
    more = f", {MOST_RANKS} of {total} ranks" if total > MOST_RANKS else ""
    said = [f"{point['workload']}: {point['config']}, repeat {point['repeat']}{more}"]
    if point["kind"]:
        said.append(f"largest finding: {point['kind']}, {percent(point['share'])} of the step")
    wrap = textwrap.TextWrapper(100 if width_in > style.ONE_COLUMN_IN else 40)
    axes.set_title("\n".join(map(wrap.fill, said)), loc="left")
    _waits(axes, events, width_in > style.ONE_COLUMN_IN)
    legend(made, events)
    return made


FAMILY = Family(
    "Timeline",
    "A few steps of one traced point: of those on most ranks, the one with most to save. Arrows mark the longest "
    "time in which nothing runs on a rank's device.",
    "No point has a trace, so there is no timeline.",
    lambda tables: with_ids(tables, [point["point_id"]] if (point := choose_point(tables)) else []),
    paint,
    reading=("Phases are those of the launching thread; events closer than a pixel are merged."),
)
