"""What a GPU kernel does, by its name: kind of operation, number format, tensor cores, collective.

Names are the only thing that every tracer gives for a kernel. They follow each library's habits, not a standard, so the
rules are lists (analysis/metrics/kernels/kernel_rules.py, analysis/metrics/kernels/kernel_format.py), tested against
real names. What a name does not say stays null: a guess would be taken for a measurement.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import polars as pl

from nightsweep.analysis.metrics.kernels import kernel_format, kernel_rules

CATEGORIES = kernel_rules.CATEGORIES
COLLECTIVES = tuple(name for name, _ in kernel_rules.COLLECTIVES)
MATRIX = frozenset({"gemm", "convolution", "attention"})
"""Categories that may run on tensor cores."""

_COLUMNS = {"category": pl.String, "precision": pl.String, "tensor_cores": pl.Boolean, "collective": pl.String}


@dataclass(frozen=True)
class KernelClass:
    """A kernel by its name.

    `category`: one of CATEGORIES. `precision`: fp8, int8, bf16, fp16, tf32, fp32 or fp64, the format of a matrix
    product's inputs, else of the data (a 16-bit type beside fp32 is the data, fp32 the accumulator); None where the
    name does not say. `tensor_cores`: whether it multiplies on matrix units (NVIDIA's tensor cores, AMD's MFMA and
    WMMA); None where the name does not say. `collective`: one of COLLECTIVES; None for all but communication, and for a
    kernel that runs any collective (RCCL's generic one).
    """

    category: str
    precision: str | None = None
    tensor_cores: bool | None = None
    collective: str | None = None


def classify(name: str) -> KernelClass:
    """The class of a kernel by its name, demangled or short, as nsys or Kineto writes it.

    Example:
        >>> classify("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
        KernelClass(category='communication', precision='fp32', tensor_cores=False, collective='all_reduce')
    """
    name = kernel_rules.bare_name(name)
    category = kernel_rules.category(name)
    if category == "other":
        return KernelClass(category, kernel_format.element_format(name))
    if category == "communication":
        collective = kernel_rules.collective(name)
        return KernelClass(category, kernel_format.reduction_format(name), False, collective)
    if category not in MATRIX:
        return KernelClass(category, kernel_format.element_format(name), False)
    precision, tensor_cores = kernel_format.matrix_format(name)
    return KernelClass(category, precision, tensor_cores)


def add_classes(kernels: pl.DataFrame) -> pl.DataFrame:
    """Add the columns category, precision, tensor_cores and collective to kernels, in their order.

    A trace has a few hundred names and may have millions of kernels, so each name is classified once.
    """
    names = kernels["name"].unique()
    classes = [astuple(classify(name or "")) for name in names]
    found = pl.DataFrame(classes, schema=_COLUMNS, orient="row").with_columns(names)
    return kernels.join(found, on="name", how="left", nulls_equal=True, maintain_order="left")
