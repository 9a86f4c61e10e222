"""How well a kernel's launch shape fills the GPU, from its launch parameters and the device's limits alone.

It is an upper bound of what a profiler's counters would show: waiting warps count like busy ones, and a tail of few
blocks is not seen. The estimates are those that PyTorch's profiler calls "Est. SM Efficiency" and "Est. Achieved
Occupancy" (README of kineto/tb_plugin), with the resident blocks as NVIDIA's calculator has them (cuda_occupancy.h of
the CUDA toolkit, cudaOccMaxActiveBlocksPerMultiprocessor), each SM set to its largest shared memory.
"""

from __future__ import annotations

import polars as pl

COLUMNS = ("waves", "est_sm_efficiency", "theoretical_occupancy", "est_achieved_occupancy")

_WARP = 32
_REGISTER_UNIT = 256  # registers are given to a warp in these
_PARTITIONS = 4  # of an SM: a warp's registers lie in one of them, so each holds a whole number of warps
_DEVICE = ("sm_count", "warps_per_sm", "registers_per_sm", "shared_bytes_per_sm")
_LIMITS = {
    "7.0": 32, "7.2": 32, "7.5": 16, "8.0": 32, "8.6": 16, "8.7": 16, "8.9": 24, "9.0": 32,
    "10.0": 32, "10.1": 24, "10.3": 32, "11.0": 24, "12.0": 24, "12.1": 24,
}  # fmt: skip
"""Resident blocks of an SM at most (cuda_occupancy.h), for a trace that has the compute capability only (Kineto)."""


def occupancy(kernels: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Add COLUMNS to kernels, in their order; null where the trace lacks a value that they need.

    `waves`: blocks / (SMs x resident blocks of an SM), Nsight Compute's Waves Per SM. `est_sm_efficiency`: SMs that get
    a block, min(blocks / SMs, 1). `theoretical_occupancy`: resident warps of an SM / its limit, were there blocks
    enough. `est_achieved_occupancy`: the same with no more blocks than the launch gives each SM, on average.

    Kineto writes the last one for kernels of up to 48 KiB of shared memory alike, but 0 for those that use more, since
    it leaves the opt-in limit out (kernelOccupancy in libkineto/src/DeviceProperties.cpp).
    """
    limits = devices.select(
        "rank",
        "device",
        *(pl.col(column).alias(f"_{column}") for column in (*_DEVICE, "compute_capability")),
        _resident_limit=pl.coalesce(
            "blocks_per_sm", pl.col("compute_capability").replace_strict(_LIMITS, default=None, return_dtype=pl.Int64)
        ),
    ).unique(["rank", "device"], keep="first", maintain_order=True)
    found = kernels.join(limits, on=["rank", "device"], how="left", nulls_equal=True, maintain_order="left")
    return (
        found.with_columns(_warps=_units(pl.col("threads"), _WARP))
        .with_columns(_resident=_resident())
        .with_columns(**_shares())
        .drop(pl.selectors.starts_with("_"))
    )


def _shares() -> dict[str, pl.Expr]:
    per_sm = pl.col("blocks") / pl.col("_sm_count")
    resident, of_block = pl.col("_resident"), pl.col("_warps") / pl.col("_warps_per_sm")
    return {
        "waves": per_sm / resident,
        "est_sm_efficiency": per_sm.clip(upper_bound=1.0),
        "theoretical_occupancy": resident * of_block,
        "est_achieved_occupancy": _least(per_sm, resident.cast(pl.Float64)) * of_block,
    }


def _resident() -> pl.Expr:
    """Resident blocks of an SM: the least that its warps, blocks, registers and shared memory allow.

    Registers: a warp takes 32 x registers, rounded up to 256; a quarter of the SM's hold a whole number of warps.
    Shared memory: a block's, with 1 KiB for the driver from CC 8.0 on, rounded up to 128 bytes (256 on CC 7). Null
    below CC 7.0, where other units hold.
    """
    warps = pl.col("_warps")
    major = pl.col("_compute_capability").str.extract(r"^(\d+)").cast(pl.Int64)
    of_warp = _units(pl.col("registers").clip(lower_bound=1) * _WARP, _REGISTER_UNIT) * _REGISTER_UNIT
    by_registers = pl.col("_registers_per_sm") // _PARTITIONS // of_warp * _PARTITIONS // warps
    unit = pl.when(major >= 8).then(128).when(major == 7).then(256)
    reserved = pl.when(major >= 8).then(1024).otherwise(0)
    of_block = _units((pl.col("shared_bytes") + reserved).clip(lower_bound=1), unit) * unit
    by_shared = pl.col("_shared_bytes_per_sm") // of_block
    return _least(pl.col("_warps_per_sm") // warps, pl.col("_resident_limit"), by_registers, by_shared)


def _units(count: pl.Expr, unit: pl.Expr | int) -> pl.Expr:
    """The number of units that hold this count, rounded up."""
    return (count + unit - 1) // unit


def _least(*values: pl.Expr) -> pl.Expr:
    """The least, null if any is null (min_horizontal passes over nulls)."""
    known = pl.all_horizontal(*(value.is_not_null() for value in values))
    return pl.when(known).then(pl.min_horizontal(*values))
