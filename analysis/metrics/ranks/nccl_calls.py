"""Joins NCCL kernels with the calls that they carry out, and with the sizes and communicators of these.

A call outside a group launches its kernel itself. Calls in a group (ncclGroupStart, ncclGroupEnd) launch nothing:
ncclGroupEnd launches their work, often all of it in one kernel. So on each thread the calls that launched
nothing belong to the next launch that is in no call; the ranges of the group itself are not needed. Calls that have the
correlation of their kernel (Kineto's outside groups) need none of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from polars._typing import AsofJoinStrategy

_KIND = r"(?i)(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|bcast|send_?recv|send|recv|reduce)"
_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "bcast": "broadcast",
    "sendrecv": "send_recv",
    "send": "send_recv",
    "recv": "send_recv",
}
_THREAD = ["process", "thread"]
_CORRELATED = ["process", "correlation"]


def kind(name: str) -> pl.Expr:
    """The collective in a kernel's or call's name, such as all_reduce or send_recv; null for none."""
    word = pl.col(name).str.extract(_KIND).str.to_lowercase().str.replace_all("_", "")
    return word.replace(_KINDS)


def join_calls(kernels: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Add calls, bytes, communicator and ranks to NCCL kernels, and the collective where their name has none.

    Of several calls in one kernel bytes is the sum; of sends and receives the larger of the two sums. bytes and calls
    are null where several kernels, or a kernel and calls of other kinds, come from one group: which did what is not
    known. All are null for a kernel in a CUDA graph, whose calls were made when the graph was captured.

    Args:
        kernels: collective, process, correlation, thread, launch_ns, graph.
        calls: EVENTS["nccl_calls"].
    """
    numbered = kernels.with_row_index("kernel")
    known = calls.with_columns(collective=kind("name")).drop_nulls("collective").with_row_index("call")
    correlated = known.filter(pl.col("correlation").is_not_null())
    numbered = _name_exchanges(numbered, correlated)
    found, own = _batches_by_correlation(numbered, correlated, known.height)
    rest = numbered.join(found, on="kernel", how="anti", maintain_order="left")
    launched, grouped = _batches_by_thread(rest, known.filter(pl.col("correlation").is_null()))
    both = pl.concat([own, grouped.select(own.columns)])
    return _add_sums(numbered, pl.concat([found, launched]), both).drop("kernel")


def _name_exchanges(kernels: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Name kernels of sends and receives all_to_all where a framework called them as one."""
    whole = calls.filter(pl.col("collective") == "all_to_all").select(_CORRELATED).unique().with_columns(whole=True)
    joined = kernels.join(whole, on=_CORRELATED, how="left", maintain_order="left")
    exchange = pl.col("whole") & (pl.col("collective") == "send_recv")
    return joined.with_columns(collective=pl.when(exchange).then(pl.lit("all_to_all")).otherwise("collective")).drop(
        "whole"
    )


_Batches = tuple[pl.DataFrame, pl.DataFrame]
"""Kernels (kernel, batch) and calls (batch, and what calls have): what was launched together."""


def _batches_by_correlation(kernels: pl.DataFrame, calls: pl.DataFrame, first: int) -> _Batches:
    """`first`: the number of the first batch."""
    keys = calls.select(_CORRELATED).unique(maintain_order=True).with_row_index("batch", first)
    return kernels.join(keys, on=_CORRELATED).select("kernel", "batch"), calls.join(keys, on=_CORRELATED)


def _batches_by_thread(kernels: pl.DataFrame, calls: pl.DataFrame) -> _Batches:
    launched = kernels.filter(pl.col("graph").is_null()).drop_nulls([*_THREAD, "launch_ns"]).sort("launch_ns")
    calls = calls.drop_nulls(_THREAD).sort("start_ns")
    last = _asof(launched, calls.select("call", *_THREAD, called="start_ns", call_end="end_ns"), "launch_ns", "called")
    inside = (pl.col("launch_ns") < pl.col("call_end")).fill_null(False)
    own, rest = last.filter(inside), last.filter(~inside)
    idle = calls.join(own.select("call"), on="call", how="anti")
    # The last idle call before a launch names its batch; the idle calls up to it are the batch's.
    ends = idle.select(*_THREAD, last_ns="start_ns", batch="call")
    late = _asof(rest, ends, "launch_ns", "last_ns").drop_nulls("batch")
    ended = ends.join(late, on="batch", how="semi")
    grouped = _asof(idle, ended, "start_ns", "last_ns", "forward").drop_nulls("batch")
    direct = calls.join(own.select("call").unique(), on="call", how="semi").with_columns(batch="call")
    both = pl.concat([own.select("kernel", batch="call"), late.select("kernel", "batch")])
    return both, pl.concat([direct, grouped.select(direct.columns)])


def _asof(
    left: pl.DataFrame, right: pl.DataFrame, at: str, when: str, strategy: AsofJoinStrategy = "backward"
) -> pl.DataFrame:
    """Each left row with the last (or next) right one of its thread; both in order of time."""
    return left.join_asof(right, left_on=at, right_on=when, by=_THREAD, strategy=strategy, check_sortedness=False)


def _add_sums(kernels: pl.DataFrame, launched: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    kinds = pl.col("collective").n_unique().over("batch")
    placed = kernels.join(launched, on="kernel", how="left", maintain_order="left")
    summed = calls.with_columns(call_kinds=kinds).group_by("batch", "collective").agg(_sums())
    # A kernel without a kind in its name is of its calls' kind, if they have only one.
    only = summed.filter(pl.col("call_kinds") == 1).select("batch", only="collective")
    placed = placed.join(only, on="batch", how="left", maintain_order="left")
    placed = placed.with_columns(pl.coalesce("collective", "only")).with_columns(
        kernel_kinds=kinds, alike=pl.len().over("batch", "collective")
    )
    found = placed.join(summed, on=["batch", "collective"], how="left", maintain_order="left")
    clear = (pl.col("alike") == 1) & (pl.col("kernel_kinds") == pl.col("call_kinds"))
    found = found.with_columns(pl.when(clear).then(pl.col("calls", "bytes")))
    return found.drop("batch", "only", "kernel_kinds", "call_kinds", "alike")


def _sums() -> list[pl.Expr]:
    received = pl.col("name").str.contains("(?i)recv")
    bytes_ = pl.col("bytes")
    total = pl.max_horizontal(bytes_.filter(received).sum(), bytes_.filter(~received).sum())
    one = pl.col("communicator").n_unique() == 1
    return [
        pl.col("call_kinds").first(),
        pl.len().cast(pl.Int64).alias("calls"),
        pl.when(bytes_.null_count() == 0).then(total).alias("bytes"),
        pl.when(one).then(pl.col("communicator").first()).alias("communicator"),
        pl.when(one).then(pl.col("ranks").first()).alias("ranks"),
    ]
