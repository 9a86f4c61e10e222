"""Nightsweep's cache folder: what takes long to make and can be made again, shared by all points, ranks and nodes.

It is $XDG_CACHE_HOME/nightsweep (~/.cache/nightsweep). What is there can be deleted at any time between runs.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.5


def folder() -> Path:
    """The cache folder, which may not be there yet. Raises RuntimeError where the user has no home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nightsweep"


def scratch(path: Path) -> Path:
    """A name beside `path` to write to first and then to rename: no other process has it, on any node."""
    return path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")


@contextmanager
def locked(path: Path, beat: Callable[[], None], patience_s: float = float("inf")) -> Iterator[None]:
    """Make `path` alone: other processes wait, on every node that the lock reaches.

    Args:
        path: what is made. Its folder must be there; the lock is a file beside it.
        beat: called while this process waits.
        patience_s: how long to wait, s, before going on without the lock.
    """
    with path.with_suffix(".lock").open("w") as lock:
        deadline = time.monotonic() + patience_s
        while not try_lock(lock.fileno()) and time.monotonic() < deadline:
            beat()
            time.sleep(POLL_S)
        yield


def try_lock(descriptor: int) -> bool:
    """Lock an open file for this process alone; False where another one has."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
