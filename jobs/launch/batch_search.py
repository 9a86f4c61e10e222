"""The largest micro_batch that fits: doubled until a GPU's memory does not hold it, then halved in on.

Every size is a start of its own, for what a failed one leaves behind in a process is not known. Sizes are told apart to
an eighth. The one found is kept in the point's point.json as `found`, from where ranks take it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from jobs.launch.attempt import SKIPPED, Attempt
from jobs.point import plan
from jobs.record.failures import TOO_FEW
from jobs.record.folder import read_json, write_json

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
    """A start failed for another reason than memory. `entry`: as the record has it."""

    def __init__(self, entry: dict[str, Any]) -> None:
        super().__init__(entry["message"])
        self.entry = entry


def run(attempt: Attempt) -> dict[str, Any] | None:
    """Search, and note what was found; None where all went well, else the entry of the start that failed."""
    file = attempt.folder / "point.json"
    job = read_json(file)
    last: dict[str, Any] = SKIPPED

    def fits(size: int) -> bool:
        nonlocal last
        write_json(file, job | {"found": {"micro_batch": size}})
        last = attempt.run("search", "none", [plan.Block("timed", STEPS)], samplers=False)
        if last["reason"] == "gpu_out_of_memory" or TOO_FEW in (last["message"] or ""):
            return False
        if last["status"] != "ok":
            raise SearchError(last)
        return True

    try:
        size = largest(attempt.point.micro_batch, fits)
    except SearchError as error:
        return error.entry
    finally:
        shutil.rmtree(attempt.folder / "search", ignore_errors=True)
    if size is None:
        return last
    write_json(file, job | {"found": {"micro_batch": size}})
    return None
