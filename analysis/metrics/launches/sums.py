"""Totals by name, as `nsys stats` has them: one row a name of one report, never summed over reports."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

PAPER = {
    "memcpy HtoD": ("copy_time_sum", r"^Host-to-Device$"),
    "cudaLaunchKernel": ("api_sum", r"^cudaLaunchKernel$"),
    "cudaStreamSynchronize": ("api_sum", r"^cudaStreamSynchronize$"),
    "ncclDevKernel_*": ("kernel_sum", r"^ncclDevKernel_"),
    "cudaEventSynchronize": ("api_sum", r"^cudaEventSynchronize$"),
    "cudaEventDestroy": ("api_sum", r"^cudaEventDestroy$"),
    "cudaMemcpyAsync": ("api_sum", r"^cudaMemcpyAsync$"),
}
"""The seven figures that arXiv 2505.22905 takes from nsys: the sum each one comes from, and the names there."""
_STYLES = {"push_pop": "PushPop", "start_end": "StartEnd", "across": "StartEnd", "annotation": "Annotation"}
_TOOK = pl.col("end_ns") - pl.col("start_ns")


def totals_by_name(frame: pl.DataFrame, value: pl.Expr, *keys: str) -> pl.DataFrame:
    """Count, total, mean, median, min, max and std (n - 1; 0 of one) of a value by `keys`, the largest total first."""
    values = frame.select(*keys, value=value)
    sums = values.group_by(keys).agg(
        count=pl.len().cast(pl.Int64),
        total=pl.col("value").sum(),
        mean=pl.col("value").mean(),
        median=pl.col("value").median(),
        min=pl.col("value").min(),
        max=pl.col("value").max(),
        std=pl.col("value").std().fill_null(0.0),
    )
    texts = sums.with_columns(pl.col(keys).cast(pl.String))
    return texts.sort(pl.col("total"), *keys, descending=[True, *(False for _ in keys)])


def event_sums(events: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """The sums of one report but `nvtx_gpu_sum`, by name of table. Times in ns, sizes in bytes."""
    copies = pl.concat([events[kind].select("name", "start_ns", "end_ns", "bytes") for kind in ("copies", "memsets")])
    return {
        "kernel_sum": totals_by_name(events["kernels"], _TOOK, "name"),
        "api_sum": totals_by_name(events["runtime"], _TOOK, "name"),
        "copy_time_sum": totals_by_name(copies, _TOOK, "name"),
        "copy_size_sum": totals_by_name(copies, pl.col("bytes"), "name"),
        "nvtx_sum": totals_by_name(with_style_names(events["nvtx"]), _TOOK, "name", "domain", "style"),
    }


def range_sums(ranges: pl.DataFrame) -> pl.DataFrame:
    """`nvtx_gpu_sum`, from nvtx_gpu."""
    return totals_by_name(with_style_names(ranges), pl.col("gpu_span_ns"), "name", "domain", "style")


def with_style_names(ranges: pl.DataFrame) -> pl.DataFrame:
    """Ranges with their style in the words of `nsys stats`."""
    known = ranges["style"].unique()
    names = known.cast(pl.String).replace_strict(_STYLES, default="Unknown")
    return ranges.with_columns(pl.col("style").replace_strict(known, names, return_dtype=pl.Categorical()))


def paper_calls(sums: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The table `paper_calls`: figure, source, count, total, mean of PAPER; count and total are 0 where none occurs."""
    rows = []
    for figure, (source, pattern) in PAPER.items():
        own = sums[source].filter(pl.col("name").str.contains(pattern))
        count, total = int(own["count"].sum()), int(own["total"].sum())
        rows.append((figure, source, count, total, total / count if count else None))
    kinds = {"figure": pl.String, "source": pl.String, "count": pl.Int64, "total": pl.Int64, "mean": pl.Float64}
    return pl.DataFrame(rows, schema=kinds, orient="row")
