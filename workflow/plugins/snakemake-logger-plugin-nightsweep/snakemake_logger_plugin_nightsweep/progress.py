"""How far a run is: what runs, how many jobs are done, failed and left, and when it will end.

A line that rewrites itself on a terminal, one line a job in a log file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO

from snakemake_logger_plugin_nightsweep.hook import Hook

QUICK_S = 5
"""What an earlier run has measured is done sooner, and tells nothing of how long the others take."""


def harmless(text: str) -> str:
    """The text with `?` for what a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else " " if c.isspace() else "?" for c in text)


@dataclass
class Progress:
    """Counts over the jobs of this run. A job is under way once it is submitted: a scheduler may still hold it.
    `running`: name, wildcards and start of each, and how many jobs' work it does; `paced`: how many jobs' work those
    did that took longer than QUICK_S."""

    hook: Hook
    total: int = 0
    sink: IO[str] = field(default_factory=lambda: sys.stderr)
    running: dict[int, tuple[str, Mapping[str, str], float, int]] = field(default_factory=dict)
    done: int = 0
    paced: int = 0
    failed: int = 0
    began: float = field(default_factory=time.time)

    def start(self, job: int, rule: str, wildcards: Mapping[str, str]) -> None:
        self.running[job] = (self.hook.name(rule, wildcards), wildcards, time.time(), self.hook.covers(wildcards))
        self.total = max(self.total, self.done + len(self.running))  # checkpoints add jobs
        self.show()

    def finish(self, job: int) -> None:
        """Count a job, and tell a failure at once."""
        if job not in self.running:
            return
        name, wildcards, since, covered = self.running.pop(job)
        if time.time() - since > QUICK_S:
            self.paced += covered
        good, text = self.hook.outcome(wildcards)
        self.done, self.failed = self.done + 1, self.failed + (not good)
        if not (good and self.sink.isatty()):
            self.line(f"{self.hook.noun} {name} {text}")
        self.show()

    def drop(self, job: int) -> None:
        """A job that ended without a result: it is no longer under way, and still to be done."""
        self.running.pop(job, None)

    def left(self) -> int:
        return self.total - self.done

    def text(self) -> str:
        now = time.time()
        left = self.total - max(self.done, self.paced)
        end = now + (now - self.began) / self.paced * left if self.paced else now
        eta = f", until about {time.strftime('%a %H:%M', time.localtime(end))}" if self.paced and left > 0 else ""
        named = ", ".join(name for name, *_ in list(self.running.values())[:3])
        more = f" (+{len(self.running) - 3})" if len(self.running) > 3 else ""
        return f"{self.done}/{self.total} {self.hook.noun}s done, {self.failed} failed, {self.left()} left{eta}" + (
            f"; under way {named}{more}" if named else ""
        )

    def show(self) -> None:
        if self.sink.isatty():
            self.sink.write("\r\033[K" + harmless(self.text())[:118])
            self.sink.flush()
        elif not self.running and self.done:
            self.line(self.text())

    def line(self, text: str) -> None:
        self.sink.write(("\r\033[K" if self.sink.isatty() else "") + harmless(text) + "\n")
        self.sink.flush()
