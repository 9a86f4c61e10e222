"""Signals that stop a run, and how they reach the main thread."""

from __future__ import annotations

import signal
import threading


def heed() -> None:
    """SIGTERM ends a run as Ctrl-C does; Snakemake alone would wait for jobs that may take all night."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.signal(signal.SIGURG, lambda *_: None)


def wake_main_thread() -> None:
    """Let it handle what has come: a signal does not interrupt a thread that is about to wait for a lock and has let go
    of the GIL for it, which on a busy host takes a while. It would sleep until a job ends."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGURG)  # that nobody else sends, and that is ignored where it has no handler


def ignore_sigterm() -> None:
    """While jobs are being cancelled, a second one must not end that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
