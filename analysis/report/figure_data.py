"""The numbers behind each figure, and how a page holds them: as a link to CSV whose data is in the link."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl
from polars import selectors

from analysis.figures import breakdown, captions, causes, failures, loss, remedies, roofline, scaling
from analysis.paper.figures import accuracy, calls, sampler
from analysis.sweep import dataset

_Frame = Callable[[pl.DataFrame, dataset.Tables], pl.DataFrame]

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


def _values(points: pl.DataFrame, results: Sequence[str]) -> pl.DataFrame:
    """The points with the settings that vary among them, and these results."""
    vary = dataset.varying(points, but=())
    return points.select("point_id", *dict.fromkeys(["workload", "model", *vary]), *results).sort("point_id")


def _points(points: pl.DataFrame, _tables: dataset.Tables) -> pl.DataFrame:
    return _values(points, RESULTS)


def _losses(_points: pl.DataFrame, tables: dataset.Tables) -> pl.DataFrame:
    """The lines that there was room for: each has as many numbers as a point has steps."""
    return pl.concat(dataset.leading(part, loss.MOST)[0] for _, part in dataset.per_workload(loss.curves(tables)))


def _calls(points: pl.DataFrame, tables: dataset.Tables) -> pl.DataFrame:
    """Times, bytes and counts of a step, by kind of call, kernel and copy."""
    kinds = calls.CALLS | calls.KERNELS | calls.DIRECTIONS | calls.AUTHORS
    rows = calls.per_step(tables, points, kinds)
    vary = [name for name in dataset.varying(points, but=()) if name not in ("kind", "count")]
    return rows.select("point_id", *vary, "kind", "ms", "gb", "count")


def _timeline(points: pl.DataFrame, tables: dataset.Tables) -> pl.DataFrame:
    return tables["timeline"].filter(pl.col("point_id").is_in(points["point_id"].implode()))


def _remedies(_points: pl.DataFrame, tables: dataset.Tables) -> pl.DataFrame:
    trials = remedies.chosen(tables)
    events = [remedies.events_of(tables, trial[name]) for trial in trials for name in ("point_id", "remedied_id")]
    return pl.concat(events)


def _scheme(points: pl.DataFrame, _tables: dataset.Tables) -> pl.DataFrame:
    ranks = int(points["world_size"][0])
    rows = [
        {"with_sampler": with_sampler, "rank": rank, "place": place, "sample": sample}
        for with_sampler in (True, False)
        for rank, own in enumerate(sampler.shares(ranks, with_sampler))
        for place, sample in enumerate(own)
    ]
    return pl.DataFrame(rows)


def _links(points: pl.DataFrame, _tables: dataset.Tables) -> pl.DataFrame:
    return points.select("topology").unique()


FRAMES: dict[str, _Frame] = {
    "scaling": lambda _, tables: scaling.speed_ups(tables),
    "breakdown": lambda _, tables: breakdown.mean_parts(tables),
    "causes": lambda _, tables: causes.shares(tables),
    "energy": lambda points, _: _values(points, ("unit", "gpu_ms", "energy_mj")),
    "timeline": _timeline,
    "failures": lambda _, tables: failures.bad_points(tables).select(
        "point_id", "config", "status", "reason", "message"
    ),
    "roofline": lambda _, tables: pl.DataFrame(roofline.placed(tables), infer_schema_length=None).select(
        "point_id", "config", "precision", "accelerator", "intensity", "flops_per_s", "peak_flops_per_s"
    ),
    "remedies": _remedies,
    "loss": _losses,
    "iteration_time": lambda points, _: _values(points, ("world_size", "step_ms_median", "step_ms_p95")),
    "memory": lambda points, _: _values(points, ("world_size", "peak_memory_bytes")),
    "topology": _links,
    "sampler": _scheme,
    "image_calls": _calls,
    "llm_calls": _calls,
    "llm_transfers": _calls,
    "loader_copies": _calls,
    "accuracy": accuracy.curves,
}
"""By family, what it is drawn of where that is more than the results of its points."""


def frame(family: str, tables: dataset.Tables) -> pl.DataFrame | None:
    """The numbers that a figure shows, also of configurations that it had no room for; None where it has none."""
    points = captions.shown(family, tables)
    if points.is_empty():
        return None
    found = told(FRAMES.get(family, _points)(points, tables))
    return found if found.height else None


def told(rows: pl.DataFrame) -> pl.DataFrame:
    """Without the columns that tell nothing, and to seven digits: more are not measured, and a mean's last ones hang on
    the order in which it was summed up."""
    return rows.select(column for column in rows.get_columns() if column.null_count() < rows.height).with_columns(
        selectors.float().round_sig_figs(7)
    )


_ENCODED = str.maketrans({character: f"%{ord(character):02X}" for character in "%#\n\r\t"})


def link(rows: pl.DataFrame) -> str:
    """A URL that is a CSV file. Of all characters only those are encoded that a browser would drop or cut at, so that
    the page's source can be read, and searched."""
    return "data:text/csv;charset=utf-8," + rows.write_csv().translate(_ENCODED)
