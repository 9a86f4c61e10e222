"""Starts the project's own modules as processes: each a new Python, or, in what comes of a node's server
(jobs/rank/server.py), a fork, which has imported already what the module needs."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, NoReturn

from nightsweep.jobs.host.processes import die_with_parent

POLL_S = 0.02
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM, signal.SIGCHLD)


class Forked:
    """A forked child, which calls `run` and ends with the code that this returns. It is used like a Popen."""

    def __init__(self, run: Callable[[], int | None]) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        # Until its handlers are those of a new process: it would take a signal for its parent's.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        self.pid = os.fork()
        if self.pid == 0:
            _become(run, blocked)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def poll(self) -> int | None:
        return self._reap(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, as Popen.wait has it. Raises subprocess.TimeoutExpired."""
        if timeout is None:
            return int(self._reap(0) or 0)
        end = time.monotonic() + timeout
        while (code := self._reap(os.WNOHANG)) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(POLL_S)
        return code

    def send_signal(self, number: int, /) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _reap(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _become(run: Callable[[], int | None], blocked: set[int | signal.Signals]) -> NoReturn:
    """In the child: a process like a new one, to its end. Nothing that the parent wants done at its exit is done."""
    code = 1
    try:
        signal.alarm(0)
        signal.set_wakeup_fd(-1)
        for number in HANDLED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        code = run() or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            # multiprocessing's own processes close theirs; on a full disk the child would go on as its parent
            with contextlib.suppress(ValueError, OSError):
                stream.flush()
        os._exit(code)


Process = subprocess.Popen[bytes] | Forked
is_preloaded = False
"""Whether this process is, or comes of, a node's server: set there."""


def start(module: str, words: list[str], environment: Mapping[str, str], log: IO[bytes] | None = None) -> Process:
    """`python -m module words` in a new session. `log`: takes what it prints; None: where this one's goes."""
    if not is_preloaded:
        command = [sys.executable, "-m", module, *words]
        error = None if log is None else subprocess.STDOUT
        return subprocess.Popen(
            command, env=environment, stdout=log, stderr=error, start_new_session=True, preexec_fn=die_with_parent
        )

    def run() -> int | None:
        os.setsid()
        if log is not None:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [str(Path(importlib.import_module(module).__file__ or module)), *words]
        main: Callable[[], int | None] = importlib.import_module(module).main
        return main()

    return Forked(run)
