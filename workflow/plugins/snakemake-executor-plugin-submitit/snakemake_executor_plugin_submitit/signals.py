"""Signals that stop a run, and how they reach the main thread."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

AGAIN_S = 1.0
"""The same stop: `timeout` signals the driver and then its group, a terminal and a batch system both."""
_last = -AGAIN_S


def heed() -> None:
    """SIGTERM ends a run as Ctrl-C does; Snakemake alone would wait for jobs that may take all night."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _interrupt)
        signal.signal(signal.SIGTERM, _interrupt)
        signal.signal(signal.SIGURG, lambda *_: None)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Like Python's handler, but once where a signal comes twice: the second would end the cancelling of jobs."""
    global _last
    now = time.monotonic()
    if now - _last >= AGAIN_S:
        _last = now
        raise KeyboardInterrupt


def wake_main_thread() -> None:
    """Let it handle what has come: a signal does not interrupt a thread that is about to wait for a lock and has let go
    of the GIL for it, which on a busy host takes a while. It would sleep until a job ends."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGURG)  # that nobody else sends, and that is ignored where it has no handler
