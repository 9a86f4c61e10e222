"""A figure: the points that it shows, how they are drawn, what its caption says, and the numbers behind it.

A module of one figure ends with its FAMILY, one of several with the Family of each;
analysis/paper/families.py lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl
from matplotlib.figure import Figure

from nightsweep.analysis.figures import style
from nightsweep.analysis.sweep import dataset

RESULTS = (
    "world_size",
    "step_ms_median",
    "step_ms_mean",
    "step_ms_p95",
    "samples_per_s",
    "tokens_per_s",
    "mfu_percent",
    "peak_memory_bytes",
    "energy_j",
    "sample_j",
)
"""Numbers behind a figure that has none of its own."""

Place = Literal["main", "supplement", "claims"]
Points = Callable[[dataset.Tables], pl.DataFrame]
Numbers = Callable[[pl.DataFrame, dataset.Tables], pl.DataFrame]
Note = Callable[[pl.DataFrame, dataset.Tables], str]


def results(*columns: str) -> Numbers:
    """Numbers of these columns of the points, beside the settings that vary within a workload; the caption has the
    others."""

    def select(points: pl.DataFrame, _tables: dataset.Tables) -> pl.DataFrame:
        vary = [name for _, part in dataset.per_workload(points) for name in dataset.varying(part, but=())]
        return points.select("point_id", *dict.fromkeys(["workload", "model", *vary]), *columns).sort("point_id")

    return select


of_results = results(*RESULTS)


@dataclass(frozen=True)
class Family:
    """One figure of a sweep's tables.

    Attributes:
        title: heading in the report.
        text: first sentences of the caption: what is shown, in at most 36 words.
        missing: one sentence for tables that have no point to show.
        points: rows of the table `points` that the figure rests on.
        paint: draws these points, from all tables, to a width in inches.
        numbers: the numbers behind it, which the report offers as CSV.
        place: among the figures to print, in the supplement, or beside the claims of the paper.
        aside: settings that make no other configuration in it.
        labelled: points among which its labels are made, where these leave the most common settings unsaid
            (analysis/sweep/short_labels.py): the caption says them.
        remedied: whether points that remedies added are shown, too.
        reading: further sentences of the caption: how it was made, and what to beware of.
        note: one more of them, from the points and all tables; empty for none.
    """

    title: str
    text: str
    missing: str
    points: Points
    paint: Callable[[pl.DataFrame, dataset.Tables, float], Figure]
    numbers: Numbers = of_results
    place: Place = "main"
    aside: Sequence[str] = dataset.ASIDE
    labelled: Points | None = None
    remedied: bool = False
    reading: str = ""
    note: Note = lambda _points, _tables: ""

    def scope(self, tables: dataset.Tables) -> dataset.Tables:
        """The tables that it is drawn of: of the sweep's own points, unless remedied ones are shown."""
        return tables if self.remedied else tables.own

    def draw(self, tables: dataset.Tables, width_in: float = style.TWO_COLUMNS_IN) -> Figure:
        """The figure, or the sentence that says why there is none (`style.says`)."""
        points = self.points(tables)
        with style.context():
            return style.says(self._why(tables)) if points.is_empty() else self.paint(points, tables, width_in)

    def _why(self, tables: dataset.Tables) -> str:
        """Why there is nothing to show."""
        shown = tables["points"]
        if not shown["disturbed"].any():
            return self.missing
        quiet = dataset.Tables({**tables.frames, "points": shown.with_columns(disturbed=None)})
        return self.missing + ("" if self.points(quiet).is_empty() else " Points that were disturbed do not count.")


def with_ids(tables: dataset.Tables, ids: pl.Series | list[str]) -> pl.DataFrame:
    """Points that ended well and have one of these ids."""
    among = pl.col("point_id").is_in(pl.Series(ids).unique().implode())
    return tables["points"].filter(pl.col("status") == "ok", among)
