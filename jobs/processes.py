"""Processes that do not outlive the one that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess

PR_SET_PDEATHSIG = 1


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask Linux to send this process a signal when its parent dies, however it dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))


def signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Signal a process that was started with start_new_session, and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
