"""How far a sweep is: what runs, how many points are done, failed and left, and when it will end.

Fed by Snakemake's log events (workflow/plugins/): a line that rewrites itself on a terminal, one line a point in
a log file.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from jobs.host.terminal import harmless
from jobs.record.json_files import read_json
from jobs.record.record import Record, ending


def duration(seconds: float) -> str:
    """As 45 s, 12 min, 3 h 05."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d}"


@dataclass
class Progress:
    """Counts over the points of this run. A point is under way once it is submitted: a scheduler may still hold it."""

    total: int = 0
    sink: IO[str] = field(default_factory=lambda: sys.stderr)
    running: dict[int, tuple[str, str]] = field(default_factory=dict)
    done: int = 0
    failed: int = 0
    began: float = field(default_factory=time.monotonic)

    def start(self, job: int, point: str, record: str) -> None:
        self.running[job] = (point, record)
        self.total = max(self.total, self.done + len(self.running))  # rounds add points
        self.show()

    def finish(self, job: int) -> None:
        """Count a point by its record, and tell a failure at once."""
        if job not in self.running:
            return
        point, path = self.running.pop(job)
        record = read_json(Path(path), Record)
        good = record is not None and record.status == "ok"
        self.done, self.failed = self.done + 1, self.failed + (not good)
        if record is None or record.status != "ok":
            self.line(f"point {point} {ending(record)}")
        elif not self.sink.isatty():
            self.line(f"point {point} ok in {duration(record.wall_s or 0)}")
        self.show()

    def drop(self, job: int) -> None:
        """A point whose job ended without a result: it is no longer under way, and still to be done."""
        self.running.pop(job, None)

    def left(self) -> int:
        return self.total - self.done

    def text(self) -> str:
        spent = time.monotonic() - self.began
        eta = f", about {duration(spent / self.done * self.left())} to go" if self.done and self.left() else ""
        now = ", ".join(point for point, _ in list(self.running.values())[:3])
        more = f" (+{len(self.running) - 3})" if len(self.running) > 3 else ""
        return f"{self.done}/{self.total} points done, {self.failed} failed, {self.left()} left{eta}" + (
            f"; under way {now}{more}" if now else ""
        )

    def show(self) -> None:
        if self.sink.isatty():
            self.sink.write("\r\033[K" + self.text()[:118])
            self.sink.flush()
        elif not self.running and self.done:
            self.line(self.text())

    def line(self, text: str) -> None:
        self.sink.write(("\r\033[K" if self.sink.isatty() else "") + harmless(text) + "\n")
        self.sink.flush()
