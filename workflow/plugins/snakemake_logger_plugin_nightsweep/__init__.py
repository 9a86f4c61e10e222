"""Snakemake logger plugin: the sweep's progress instead of a page a job. Used by `logger: nightsweep` in a profile."""

from __future__ import annotations

import logging
import re
from logging import LogRecord
from pathlib import Path

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from analysis.sweep.labels import plural
from analysis.tools import size
from jobs.sweep.driver import Run, tell_full_disk
from jobs.sweep.estimate import estimate
from jobs.sweep.progress import Progress

POINT_RULE = re.compile(r"(.*_)?point")
"""Its name may have a prefix, where another workflow uses this one as a module."""
DRY_RUN_ENDS = "This was a dry-run"
EXPECTED = re.compile(
    r"Cannot restore .*record\.json: no backup found\.|"
    r".*rule (.*_)?led_point were not present when the DAG was created.*",
    re.DOTALL,
)
"""What Snakemake warns of a point that left no record and had none before, and of one whose record the job of another
point has written."""


def plan_lines(run: Run, planned: list[str]) -> list[str]:
    """How many points are to run, of how many, and what they cost."""
    points = [run.point(point) for point in planned]
    title = f"{run.sweep.name}: {len(points)} of {plural(len(run.own), 'point')} to run"
    return [title, *(size.cost_lines(estimate(points)) if points else [])]


def last_lines(record: LogRecord) -> list[str]:
    """The last line of each log of a failed job."""
    found = []
    for path in map(Path, getattr(record, "log", None) or []):
        lines = path.read_text(errors="replace").split("\n") if path.is_file() else []
        said = [line.strip() for line in lines if line.strip()]
        found += [f"{path}: {said[-1][:300]}"] if said else []
    return found


class LogHandler(LogHandlerBase):
    """Events in, lines out on stderr. Warnings and errors pass through."""

    def __post_init__(self) -> None:
        self.progress = Progress()
        self.jobs: dict[str, int] = {}
        self.planned: list[str] = []

    def emit(self, record: LogRecord) -> None:
        event = getattr(record, "event", None)
        if self.common_settings.dryrun:
            self.plan(record, event)
        elif event == LogEvent.RUN_INFO:
            stats = getattr(record, "stats", {})
            self.progress.total = sum(count for name, count in stats.items() if POINT_RULE.fullmatch(name))
        elif event == LogEvent.JOB_INFO and POINT_RULE.fullmatch(record.rule_name):
            # not record.output, where Snakemake writes flags behind the names
            wildcards = record.wildcards
            self.progress.start(
                record.jobid,
                wildcards["point"],
                f"results/{wildcards['sweep']}/points/{wildcards['point']}/record.json",
            )
        elif event == LogEvent.JOB_FINISHED:
            self.progress.finish(record.job_id)
        elif event == LogEvent.JOB_ERROR:
            self.progress.drop(record.jobid)
            self.tell(record)
            if full := tell_full_disk(Run.latest.folder) if Run.latest else "":
                self.progress.line(full)
        elif record.getMessage() == NOTHING_TO_BE_DONE_MSG and Run.latest:
            Run.latest.summarize()  # Snakemake calls onsuccess only where something ran
        elif getattr(record, "progress", False):  # the executor's: what it submitted, what jobs wait for
            self.progress.line(record.getMessage())
        elif record.levelno >= logging.WARNING or event == LogEvent.ERROR:
            self.tell(record)

    def tell(self, record: LogRecord) -> None:
        """What went wrong, and the last lines of the logs that say why."""
        for line in (record.getMessage(), *last_lines(record)):
            self.progress.line(line)

    def plan(self, record: LogRecord, event: LogEvent | None) -> None:
        """Of a dry run: which jobs there would be, and what the points among them cost, at its end."""
        if event == LogEvent.RUN_INFO:
            self.jobs = {name: count for name, count in record.stats.items() if name != "total"}
        elif event == LogEvent.JOB_INFO and POINT_RULE.fullmatch(record.rule_name):
            self.planned.append(record.wildcards["point"])
        elif record.getMessage() == NOTHING_TO_BE_DONE_MSG:
            self.progress.line("dry run: nothing to be done")
        elif record.getMessage().startswith(DRY_RUN_ENDS) and Run.latest:
            jobs = ", ".join(f"{count} {name}" for name, count in self.jobs.items())
            self.progress.line(f"dry run: nothing is started; a run would have these jobs: {jobs}")
            for line in plan_lines(Run.latest, self.planned):
                self.progress.line(line)
        elif record.levelno >= logging.WARNING:
            self.progress.line(record.getMessage())

    @property
    def writes_to_stream(self) -> bool:
        return True

    @property
    def writes_to_file(self) -> bool:
        return False

    @property
    def has_filter(self) -> bool:
        return True

    @property
    def has_formatter(self) -> bool:
        return True

    @property
    def needs_rulegraph(self) -> bool:
        return False

    def filter(self, record: LogRecord) -> bool:
        """Without warnings of what is as it should be."""
        return not EXPECTED.fullmatch(record.getMessage())

    def close(self) -> None:
        """Snakemake closes its handlers last. Where nothing was to be done, it calls no hook that could say by the exit
        status that points are not ok."""
        super().close()
        if Run.latest:
            Run.latest.end()
