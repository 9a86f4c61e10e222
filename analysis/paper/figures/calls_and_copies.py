"""Calls and copies per step, in traces of nsys: the seven times that the paper's authors chose, of image jobs; copies
and synchronisation by loader and layout; transfers of each method of tuning a language model, by direction."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from nightsweep.analysis.paper.figures import bars, calls
from nightsweep.analysis.paper.figures.family import WHISKERS, family
from nightsweep.analysis.sweep import dataset

_KINDS = {
    "Copies to the GPU": calls.DIRECTIONS["HtoD"],
    "Copies within the GPU": calls.DIRECTIONS["DtoD"],
    "Synchronisation": calls.SYNCHRONISE,
}


def _paint_image_calls(points: pl.DataFrame, tables: dataset.Tables, width_in: float) -> Figure:
    frame = calls.per_step(tables, points, calls.AUTHORS)
    memory = pl.when("pin_memory").then(pl.lit("pinned")).otherwise(pl.lit("pageable"))
    frame = frame.with_columns(case=pl.format("{}\n{} GPU", memory, "world_size"))
    kinds = [kind for kind in calls.AUTHORS if frame.filter(pl.col("kind") == kind)["ms"].sum()]
    return bars.by_kind(frame, kinds, "case", "precision", width_in, 1.9)


def _paint_loader_copies(points: pl.DataFrame, tables: dataset.Tables, width_in: float) -> Figure:
    return bars.by_kind(calls.per_step(tables, points, _KINDS), [*_KINDS], "loader", "layout", width_in)


def _paint_llm_transfers(points: pl.DataFrame, tables: dataset.Tables, width_in: float) -> Figure:
    frame = calls.per_step(tables, points, calls.DIRECTIONS)
    levels = [name for name in calls.DIRECTIONS if frame.filter(pl.col("kind") == name)["count"].sum()]
    frame = frame.filter(pl.col("kind").is_in(levels)).rename({"kind": "direction"})
    made, (time, size) = bars.grid(2, width_in)
    for axes, value, title in ((time, "ms", "Time (ms a step)"), (size, "gb", "Volume (GB a step)")):
        bars.columns(axes, frame, "method", "direction", value, levels)
        axes.set_ylabel(title)
    bars.legend(made, "direction", levels)
    return made


IMAGE_CALLS = family(
    "Image jobs in Nsight Systems",
    "Time per step of copies and kernels on the GPU and of API calls on the host, in the traced run, mean over "
    "ranks. They overlap, so they must not be added up.",
    "No two image points with a trace of nsys differ in precision, pinned memory or GPUs alone.",
    lambda tables: calls.widest_block(tables, "image", ("precision", "pin_memory", "ranks_per_node")),
    _paint_image_calls,
    calls.numbers,
    reading=f"Each panel has its own scale; one where all are 0 is left out. {WHISKERS}",
    place="supplement",
)
LOADER_COPIES = family(
    "Copies and synchronisation by loader and layout",
    "Time per step of copies on the GPU, and of API calls that wait for it, mean over ranks, in the traced run.",
    "No two image points with a trace of nsys differ in loader or layout alone.",
    lambda tables: calls.widest_block(tables, "image", ("loader", "layout")),
    _paint_loader_copies,
    calls.numbers,
    reading=f"Each panel has its own scale. {WHISKERS}",
    place="supplement",
)
LLM_TRANSFERS = family(
    "Tuning methods: transfers",
    "Copies on the GPU in the traced run, mean over ranks: HtoD to the GPU, DtoH from it, DtoD within it, PtoP "
    "between GPUs outside NCCL.",
    "No two points of a language model with a trace of nsys differ in method alone.",
    lambda tables: calls.widest_block(tables, "llm", ("method",)),
    _paint_llm_transfers,
    calls.numbers,
    reading=f"Methods without bars copy nothing. {WHISKERS}",
    place="supplement",
)
