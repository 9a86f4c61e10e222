"""Why a rank failed, as one word of the closed list in analysis/tables/points.py, and one line."""

from __future__ import annotations

import re

from jobs.host.unsupported import Unsupported

TOO_FEW = "this rank's share of the data is smaller than one micro_batch"
"""What a rank says that has too few samples."""
_OUT_OF_MEMORY = re.compile(r"CUDA (error: )?out of memory|STATUS_ALLOC_FAILED")
"""What torch says where another library's allocation fails: cuBLAS's, cuDNN's or NCCL's."""


class LossNotFinite(Exception):
    """Training went wrong: a loss is NaN or infinite."""

    def __init__(self, step: int, value: float) -> None:
        super().__init__(f"loss is {value} at step {step}")
        self.step = step


class DrillError(Exception):
    """A failure made on purpose (the point's `fault`)."""


def reason_of(error: BaseException) -> tuple[str, str]:
    """The reason and a one-line message for an exception that a rank raised."""
    message = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    if isinstance(error, Unsupported):
        return "unsupported_here", str(error)
    if isinstance(error, LossNotFinite):
        return "loss_nan", str(error)
    if isinstance(error, MemoryError):
        return "host_out_of_memory", message
    if type(error).__name__ == "OutOfMemoryError" or _OUT_OF_MEMORY.search(message):  # without importing torch here
        return "gpu_out_of_memory", message
    return "rank_exception", message
