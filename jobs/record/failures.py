"""Why a point, a run or a rank failed: one word of a closed list, and one line."""

from __future__ import annotations

import errno
import re
from typing import Literal, get_args

from nightsweep.jobs.host.unsupported import Unsupported

Reason = Literal[
    "rank_exception",  # a rank raised
    "rank_killed",  # a rank died of a signal
    "rank_exit",  # a rank ended with a non-zero code and no traceback
    "loss_nan",  # the loss is not finite
    "gpu_out_of_memory",
    "host_out_of_memory",
    "disk_full",  # no space, or no quota, is left where a rank writes
    "stalled",  # no rank moved for the set time
    "time_limit",
    "unsupported_here",  # the device cannot do what the point asks
    "launch_failed",  # ranks could not be started, or the scheduler refused the job
    "interrupted",  # somebody stopped a run; a point that was stopped has no record
    "node_failure",  # a node died, more often than the job may be submitted again
    "preempted",  # likewise, by jobs of higher priority
    "cancelled",  # a person cancelled the job
    "lost",  # the job or its launcher is gone, more often than it may be submitted again, and left no record
]
"""Why a point or a run is not ok."""

REASONS: tuple[Reason, ...] = get_args(Reason)

TOO_FEW_SAMPLES = "this rank's share of the data is smaller than one micro_batch"
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


def is_disk_full(error: BaseException) -> bool:
    """Whether an operation failed because no space, or no quota, is left."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def os_error_line(error: OSError) -> str:
    """What the system says of a file, and of which one."""
    if error.filename is None:
        return str(error)
    # Only where a folder is made does Nightsweep mind that something is there.
    why = "is there already, and is no folder" if isinstance(error, FileExistsError) else error.strerror
    return f"{error.filename}: {why}"


def reason_of(error: BaseException) -> tuple[Reason, str]:
    """The reason and a one-line message for an exception that a rank raised."""
    if isinstance(error, Unsupported):
        return "unsupported_here", str(error)
    if isinstance(error, LossNotFinite):
        return "loss_nan", str(error)
    return reason_of_text(type(error).__name__, str(error), error.errno if isinstance(error, OSError) else None)


def reason_of_text(kind: str, text: str, number: int | None = None) -> tuple[Reason, str]:
    """The same of an exception's class, its text and its errno: scripts have their own Python."""
    lines = text.strip().splitlines() or [""]
    if kind == "ProcessRaisedException":  # of torch.multiprocessing: a heading, and a traceback with its own message
        within = [place for place, line in enumerate(lines) if line.startswith("  ")]
        lines = lines[within[-1] + 1 :] if within and within[-1] + 1 < len(lines) else lines
    message = f"{kind}: {lines[0]}"[:300]
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "disk_full", message
    if kind == "MemoryError":
        return "host_out_of_memory", message
    if kind == "OutOfMemoryError" or _OUT_OF_MEMORY.search(message):
        return "gpu_out_of_memory", message
    return "rank_exception", message
