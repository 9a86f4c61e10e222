"""Processes that do not outlive the one that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from pathlib import Path

PR_SET_PDEATHSIG = 1
_PRCTL = ctypes.CDLL(None).prctl
"""Looked up here, for between fork and exec of a process with threads it could not be."""


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask Linux to send this process a signal when its parent dies, however it dies. Whoever starts it has that done
    between fork and exec, too: until it has imported what it needs, its parent may be gone."""
    _PRCTL(PR_SET_PDEATHSIG, int(number))


def end_with_parent() -> None:
    """The same, with the signal that asks a process to end those that it has started, too."""
    die_with_parent(signal.SIGTERM)


def end_on_sigterm(stop: threading.Event) -> None:
    """Set it when the signal comes; by a thread, because the main one may just hold the event's lock."""
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=stop.set).start())


def signal_group(leader: int, number: int) -> None:
    """Signal a process that leads a session, and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


def out_of_memory_kills() -> int:
    """How many processes the kernel has killed for memory in this process's cgroup; 0 where unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, own = line.split(":", 2)
            root, file = ("/sys/fs/cgroup", "memory.events")  # version 2
            if "memory" in controllers.split(","):
                root, file = ("/sys/fs/cgroup/memory", "memory.oom_control")
            elif controllers:
                continue
            with contextlib.suppress(OSError):
                events = Path(root, own.strip("/"), file).read_text()
                return sum(int(line.split()[1]) for line in events.splitlines() if line.startswith("oom_kill "))
    return 0
