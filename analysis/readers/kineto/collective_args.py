"""NCCL's calls of a Kineto trace: a collective's size is in the args of its kernel, or of its operator.

A row is an NCCL kernel (or RCCL's) with a known collective. Its operator, `record_param_comms`, has the same external
id, and its time and thread are the row's. Where the operator is not in the trace, the row has the time of the kernel,
and no thread. A send or receive of a group (`batch_isend_irecv`) has a row without correlation: its kernel has the
external id of what encloses the group. Other operators that launch no kernel, such as `wait`, are no calls.
"""

from __future__ import annotations

import polars as pl

from nightsweep.analysis.tables.events import NCCL_KERNEL

_BYTES = {
    1: ("Byte", "Char", "Bool", "Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz", "Float8_e8m0fnu"),
    2: ("Short", "Half", "BFloat16", "UInt16"),
    4: ("Int", "Float", "UInt32", "ComplexHalf"),
    8: ("Long", "Double", "UInt64", "ComplexFloat"),
    16: ("ComplexDouble",),
}
"""PyTorch's names of types by their size, bytes."""
_SIZE = {name: size for size, names in _BYTES.items() for name in names}
_SHARED = r"(?i)reduce_?scatter|all_?to_?all"
"""Of these PyTorch records a rank's whole input, and NCCL the share of one rank."""
_IN_GROUPS = ("send", "recv")
_DESCRIBED = ("collective", "elements", "dtype", "group", "ranks")


def calls(kernels: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """The columns of nccl_calls, from those of kernels and of the operators that describe collectives."""
    described = operators.filter(pl.col("external").is_not_null()).unique("external", keep="first", maintain_order=True)
    own = kernels.filter(pl.col("name").str.contains(NCCL_KERNEL))
    both = own.join(described, on="external", how="left", suffix="_of_operator", maintain_order="left")
    grouped = described.filter(pl.col("collective").is_in(_IN_GROUPS), pl.col("elements") > 0)
    grouped = grouped.join(own.select("external"), on="external", how="anti")
    called = pl.col("start_ns_of_operator").is_not_null()
    launched = both.with_columns(
        *(pl.coalesce(name, f"{name}_of_operator") for name in _DESCRIBED),
        *(pl.coalesce(f"{name}_of_operator", name).alias(name) for name in ("start_ns", "end_ns", "process")),
        thread=pl.when(called).then("thread_of_operator"),
    ).filter(pl.col("collective").is_not_null())
    known = pl.concat([launched, grouped], how="diagonal_relaxed")
    size = pl.col("dtype").replace_strict(_SIZE, default=None, return_dtype=pl.Int64)
    whole = pl.col("elements") * size
    shared = pl.col("collective").str.contains(_SHARED)
    share = pl.when(shared).then(whole // pl.when(pl.col("ranks") > 0).then("ranks")).otherwise(whole)
    return known.with_columns(name="collective", bytes=share, communicator="group")
