"""The remedy that gained most and the one that gained least: a few steps before and after each."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from nightsweep.analysis.figures import style, timeline
from nightsweep.analysis.figures.family import Family, with_ids
from nightsweep.analysis.sweep import dataset, labels
from nightsweep.analysis.sweep.labels import percent, short_number

SIDES = ("point_id", "remedied_id")
"""Columns of `remedies` with the point before and after."""


def choose_trials(tables: dataset.Tables) -> list[dict[str, Any]]:
    """The trials shown, the best first: of those measured that had an effect, with a timeline of both points."""
    traced = tables["timeline"]["point_id"].unique().implode()
    both = pl.col("point_id").is_in(traced) & pl.col("remedied_id").is_in(traced)
    trials = tables["remedies"].filter(both, pl.col("gain").is_not_null(), pl.col("verdict") != "no_effect")
    rows = trials.sort("gain", "point_id", descending=[True, False]).to_dicts()
    return rows if len(rows) < 2 else [rows[0], rows[-1]]


def change(remedy: str) -> str:
    """The settings of a remedy (JSON), in words."""
    return ", ".join(labels.word(name, value) for name, value in json.loads(remedy).items())


def events_of(tables: dataset.Tables, point_id: str) -> pl.DataFrame:
    """The timeline of the point's first traced rank."""
    events = tables["timeline"].filter(pl.col("point_id") == point_id)
    return events.filter(pl.col("rank") == events["rank"].min())


def paint(_points: pl.DataFrame, tables: dataset.Tables, _width_in: float) -> Figure:
    """Two timelines a trial, to the same scale."""
    trials = choose_trials(tables)
    sides = [(trial, name, events_of(tables, trial[name])) for trial in trials for name in SIDES]
    heights = [0.22 * len(timeline.rows_of(events)) + 0.55 for _, _, events in sides]
    made = style.figure(height_in=sum(heights) + 0.4)
    rows = made.subplots(len(sides), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for place, (axes, (trial, name, events)) in enumerate(zip(rows, sides, strict=True)):
        timeline.lanes(axes, events)
        pair = sides[place - place % 2 : place - place % 2 + 2]
        axes.set_xlim(0, max(max(events["end_ns"]) for _, _, events in pair) / 1e6)
        axes.set_title(title(trial, after=name == "remedied_id"), loc="left")
    timeline.legend(made, pl.concat([events for _, _, events in sides]))
    return made


def title(trial: dict[str, Any], after: bool) -> str:
    """What one of the two timelines shows."""
    if not after:
        return f"{trial['point_id']}, {trial['kind']}: {short_number(trial['before_ms'])} ms per sample"
    gained = f"predicted saving {percent(trial['predicted'])}, measured {percent(trial['gain'])}"
    return f"with {change(trial['remedy'])}: {short_number(trial['after_ms'])} ms per sample; {gained}"


FAMILY = Family(
    "Before and after remedies",
    "The remedies that saved most and least, of those tried: the first traced rank before and after, to the same "
    "scale.",
    "No remedy was tried on points with traces (target remedies), so there is nothing to compare.",
    lambda tables: with_ids(tables, [t[n] for t in choose_trials(tables) for n in SIDES]),
    paint,
    remedied=True,
    reading="Events closer than a pixel are merged. Times per sample are of the timed run.",
    place="supplement",
)
