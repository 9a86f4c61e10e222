"""The time of a launch: UTC as its host's wall clock had it at the beginning, moved on by the monotonic clock.

So no duration changes where somebody sets the wall clock meanwhile. The processes of a launch on one host must count
from the same reading to be comparable: the first one hands it to those that it starts, in a variable. On another host
the monotonic clock is another one, and its first process reads the wall clock again.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

VARIABLE = "NIGHTSWEEP_CLOCK"
"""Which boot of which host, and how far UTC is ahead of its monotonic clock, ns."""
READINGS = 5  # a process may lose its core between two clocks: the closest pair counts


def begin() -> None:
    """A launch begins: read the wall clock, for this process and those that it starts."""
    os.environ.pop(VARIABLE, None)
    _ahead_ns.cache_clear()
    join()


def join() -> None:
    """This process starts others of its launch: let them count as it does."""
    os.environ[VARIABLE] = f"{_boot()} {_ahead_ns()}"


def now_ns() -> int:
    """UTC, ns."""
    return time.monotonic_ns() + _ahead_ns()


@functools.cache
def _ahead_ns() -> int:
    boot, _, ahead = os.environ.get(VARIABLE, "").partition(" ")
    return int(ahead) if ahead and boot == _boot() else min(map(_read, range(READINGS)))[1]


def _read(_: int) -> tuple[int, int]:
    """How long it took, and UTC less the monotonic clock."""
    before, utc = time.monotonic_ns(), time.time_ns()
    after = time.monotonic_ns()
    return after - before, utc - (before + after) // 2


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
