"""Peaks that makers state of their devices: dense FLOP/s by precision, and memory bandwidth.

Names are those of NVML and torch without the maker's prefix; only whole names count, so that a MIG slice or an unlisted
variant has no peak rather than another device's. Data sheets give most tensor-core numbers with 2:4 sparsity; listed is
half of those. Where a device has two units for a precision, the faster one counts: matrix products of fp64 run on the
tensor cores where they can. fp32 is without TF32. fp16 and bf16 accumulate in fp32, as torch does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

T = 1e12


@dataclass(frozen=True)
class Peak:
    """A device: FLOP/s by precision (one that the maker does not state is absent), and bytes/s of its memory."""

    flops_per_s: dict[str, float]
    memory_bytes_per_s: float


def _peaks(**tera: float) -> dict[str, float]:
    return {precision: value * T for precision, value in tera.items()}


# NVIDIA A100 Tensor Core GPU data sheet (nvidia-a100-datasheet-us-nvidia-1758950-r4).
_A100 = _peaks(fp64=19.5, fp32=19.5, tf32=156, fp16=312, bf16=312)
# NVIDIA H100 Tensor Core GPU data sheet; dense numbers of SXM: NVIDIA H100 architecture white paper, table 2.
_H100_SXM = _peaks(fp64=66.9, fp32=66.9, tf32=494.7, fp16=989.4, bf16=989.4, fp8=1978.9)
_H100_PCIE = _peaks(fp64=51, fp32=51, tf32=378, fp16=756, bf16=756, fp8=1513)
_H100_NVL = _peaks(fp64=60, fp32=60, tf32=417.5, fp16=835.5, bf16=835.5, fp8=1670.5)
# NVIDIA Blackwell data sheet (3384703), column HGX B200, of one GPU.
_B200 = _peaks(fp64=37, fp32=75, tf32=1100, fp16=2250, bf16=2250, fp8=4500)
# NVIDIA L40S data sheet; it states no fp64.
_L40S = _peaks(fp32=91.6, tf32=183, fp16=362.05, bf16=362.05, fp8=733)
# NVIDIA Ada GPU architecture white paper, appendix A, rows "with FP32 accumulate"; it states no fp64.
_RTX_4090 = _peaks(fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2, fp8=330.3)
# AMD Instinct MI250X data sheet, halved: torch sees each of its two dies as a device.
_MI250X_DIE = _peaks(fp64=47.85, fp32=47.85, fp16=191.5, bf16=191.5)
# AMD Instinct MI300X data sheet.
_MI300X = _peaks(fp64=163.4, fp32=163.4, tf32=653.7, fp16=1307.4, bf16=1307.4, fp8=2614.9)

PEAKS: dict[str, Peak] = {
    "A100-SXM4-40GB": Peak(_A100, 1.555 * T),
    "A100-SXM4-80GB": Peak(_A100, 2.039 * T),
    "A100-PCIE-40GB": Peak(_A100, 1.555 * T),
    "A100 80GB PCIe": Peak(_A100, 1.935 * T),
    "H100 80GB HBM3": Peak(_H100_SXM, 3.35 * T),
    "H100 PCIe": Peak(_H100_PCIE, 2.0 * T),
    "H100 NVL": Peak(_H100_NVL, 3.9 * T),
    # NVIDIA H200 Tensor Core GPU data sheet: the H100's numbers, other memory.
    "H200": Peak(_H100_SXM, 4.8 * T),
    "H200 NVL": Peak(_H100_NVL, 4.8 * T),
    "B200": Peak(_B200, 7.7 * T),
    "L40S": Peak(_L40S, 0.864 * T),
    "GeForce RTX 4090": Peak(_RTX_4090, 1.008 * T),
    "Instinct MI250X": Peak(_MI250X_DIE, 1.638 * T),
    "Instinct MI300X": Peak(_MI300X, 5.3 * T),
}


def format_of(settings: Mapping[str, Any]) -> str | None:
    """The format of a point's products, by which its peak goes: its precision, or that of float8's products."""
    return "fp8" if settings.get("float8") not in (None, "none") else settings.get("precision")


def peak_of(name: str | None) -> Peak | None:
    """The stated peaks of the device of this name; None for a device that is not listed.

    Example:
        >>> peak_of("NVIDIA H200").memory_bytes_per_s
        4800000000000.0
    """
    return PEAKS.get((name or "").removeprefix("NVIDIA ").removeprefix("AMD "))
