"""The largest micro_batch that fits: doubled until a GPU's memory does not hold it, then halved in on.

Every size is a start of its own, for what a failed one leaves behind in a process is not known. Sizes are distinguished
to an eighth.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

from nightsweep.jobs.launch.attempt import SKIPPED, Attempt, RunEnd
from nightsweep.jobs.point import plan
from nightsweep.jobs.record.failures import TOO_FEW_SAMPLES

STEPS = 2
"""Timed steps of a start; with the warm-up's, the optimizer has made its state."""
PRECISION = 8


def largest(start: int, fits: Callable[[int], bool]) -> int | None:
    """The largest size that fits, to an eighth of it; None where `start` does not."""
    if not fits(start):
        return None
    low, high = start, start * 2
    while fits(high):
        low, high = high, high * 2
    while high - low > max(1, low // PRECISION):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


class SearchError(Exception):
    """No size was found. `ended`: the start that says why, as the timed run of the record."""

    def __init__(self, ended: RunEnd) -> None:
        super().__init__(ended.run.message)
        self.ended = ended


def with_size(attempt: Attempt, size: int) -> Attempt:
    """The same attempt with micro-batches of this size."""
    return replace(attempt, point=replace(attempt.point, micro_batch=size))


def search(attempt: Attempt) -> int:
    """The largest micro_batch that fits. Raises SearchError where the point's own does not, or where a start failed for
    another reason than memory; the folder of that start stays, for its tracebacks."""
    last = SKIPPED

    def fits(size: int) -> bool:
        nonlocal last
        last = with_size(attempt, size).run("search", "none", [plan.Block("timed", STEPS)], samplers=False)
        if last.run.reason == "gpu_out_of_memory" or TOO_FEW_SAMPLES in (last.run.message or ""):
            return False
        if last.run.status != "ok":
            raise SearchError(last)
        return True

    size = largest(attempt.point.micro_batch, fits)
    if size is None:
        raise SearchError(last)
    shutil.rmtree(attempt.folder / "search", ignore_errors=True)
    return size
