"""`nightsweep watch RESULTS --report FILE`: when the interim report is written again, and by which process.

A process of its own writes each version (interim_report.py), so that the view goes on meanwhile.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from nightsweep.analysis.sweep.labels import duration
from nightsweep.analysis.tools.watch.state import SweepState
from nightsweep.jobs.host.terminal import last_line
from nightsweep.jobs.record.input_error import InputError

EVERY_S = 60
"""Least seconds from one version to the next. One that takes longer to write waits as long as it took."""
TRIES = 2
"""Of the last version: the workflow may replace a table just while it is read."""
ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}


class ReportKeeper:
    """Keeps the report of a sweep up to date while it runs. `sweep`: results/SWEEP; `page`: HTML file. Raises
    InputError where the page cannot be there."""

    def __init__(self, sweep: Path, page: Path) -> None:
        self.sweep, self.page = sweep, page
        self.process: subprocess.Popen[bytes] | None = None
        self.began_s = self.next_s = 0.0
        self.written_s: float | None = None
        self.problem = ""
        self.seen: tuple[int, int, int] | None = None
        if page.absolute() == (sweep / "report.html").absolute():
            raise InputError(f"{page}: the workflow writes this file; expected another one")
        if page.is_dir():
            raise InputError(f"{page}: is a folder; expected an HTML file to write")
        try:
            # Beside the page, for a file takes another one's place at once only on its own disk.
            self.scratch = tempfile.TemporaryDirectory(
                dir=page.absolute().parent, prefix=f".{page.name}.", ignore_cleanup_errors=True
            )
        except OSError as error:
            raise InputError(f"{page}: {error.strerror}; expected a file in a folder that can be written") from None

    def __enter__(self) -> ReportKeeper:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.scratch.cleanup()

    def update(self, state: SweepState) -> None:
        """Have the page written again where points are new and it is time."""
        if self.process is not None and self.process.poll() is not None:
            self._ended()
        counts = (state.points, state.done, state.failed)
        if self.process is None and counts != self.seen and time.monotonic() >= self.next_s:
            self.seen = counts
            self._start()

    def finish(self) -> None:
        """Write the last version, and wait for it. Raises InputError where it cannot be written."""
        if self.process is not None:
            self.process.wait()
            self._ended()
        for _ in range(TRIES):
            self._start().wait()
            self._ended()
            if not self.problem:
                return
        raise InputError(f"{self.page}: {self.problem}")

    def line(self) -> str:
        """What there is to say of the page, for the view."""
        if self.problem:
            return f"report: {self.page}: {self.problem}; it is tried again"
        if self.written_s is None:
            return f"report: {self.page}: being written"
        return f"report: {self.page}, written {duration(time.monotonic() - self.written_s)} ago"

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "nightsweep.analysis.tools.watch.interim_report"]
        self.began_s = time.monotonic()
        with self._log().open("wb") as log:
            self.process = subprocess.Popen(
                [*command, self.sweep, self.page, self.scratch.name],
                env=os.environ | ONE_THREAD,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.process

    def _ended(self) -> None:
        assert self.process is not None
        status, self.process, now = self.process.returncode, None, time.monotonic()
        self.next_s = now + max(EVERY_S, now - self.began_s)
        if status:
            said = last_line(self._log().read_text(errors="replace"))
            self.problem, self.seen = f"not written: {said or f'exit status {status}'}", None
        else:
            self.problem, self.written_s = "", now

    def _log(self) -> Path:
        return Path(self.scratch.name) / "log"
