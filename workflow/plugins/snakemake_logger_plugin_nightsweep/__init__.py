"""Snakemake logger plugin: the sweep's progress instead of a page a job. Used by `logger: nightsweep` in a profile."""

from __future__ import annotations

import logging
import re
from logging import LogRecord

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from jobs.sweep.driver import Run
from jobs.sweep.progress import Progress

POINT_RULE = "point"
NO_FORMER_RECORD = re.compile(r"Cannot restore .*record\.json: no backup found\.")


class LogHandler(LogHandlerBase):
    """Events in, lines out on stderr. Warnings and errors pass through."""

    def __post_init__(self) -> None:
        self.progress = Progress()

    def emit(self, record: LogRecord) -> None:
        event = getattr(record, "event", None)
        if event == LogEvent.RUN_INFO:
            self.progress.total = getattr(record, "stats", {}).get(POINT_RULE, 0)
        elif event == LogEvent.JOB_INFO and record.rule_name == POINT_RULE:
            # not record.output, where Snakemake writes flags behind the names
            wildcards = record.wildcards
            self.progress.start(
                record.jobid,
                wildcards["point"],
                f"results/{wildcards['sweep']}/points/{wildcards['point']}/record.json",
            )
        elif event == LogEvent.JOB_FINISHED:
            self.progress.finish(record.job_id)
        elif record.getMessage() == NOTHING_TO_BE_DONE_MSG and Run.latest:
            Run.latest.summarize()  # Snakemake calls onsuccess only where something ran
        elif record.levelno >= logging.WARNING or event in (LogEvent.JOB_ERROR, LogEvent.ERROR):
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
        """Without Snakemake's warning that a point which left no record had none before, either."""
        return not NO_FORMER_RECORD.fullmatch(record.getMessage())

    def close(self) -> None:
        """Snakemake closes its handlers last. Where nothing was to be done, it calls no hook that could say by the exit
        status that points are not ok."""
        super().close()
        if Run.latest and not Run.latest.all_ok:
            raise SystemExit(1)
