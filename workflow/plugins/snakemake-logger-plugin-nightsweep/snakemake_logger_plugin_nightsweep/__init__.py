"""Snakemake logger plugin: the run's progress instead of a page a job. Used by `logger: nightsweep` in a profile."""

# Snakemake reads the types of the settings, so they must not be put off (no `from __future__ import annotations`).
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

from snakemake_logger_plugin_nightsweep import hook
from snakemake_logger_plugin_nightsweep.progress import Progress

__all__ = ["LogHandler", "LogHandlerSettings"]

DRY_RUN_ENDS = "This was a dry-run"
STOPS = "Terminating processes on user request"
HINT = "For further error details"
"""Where what Snakemake adds to an executor's reason begins."""
Record = Any
"""A logging.LogRecord with what Snakemake adds."""


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):  # type: ignore[misc]
    """Settings: `--logger-nightsweep-NAME` on the command line, `logger-nightsweep-NAME` in a profile."""

    hook: Optional[str] = field(
        default=None, metadata={"help": "What knows the workflow's jobs: MODULE:CLASS, see hook.py", "required": False}
    )


def last_lines(record: Record) -> list[str]:
    """The last line of each log of a failed job."""
    found = []
    for path in map(Path, getattr(record, "log", None) or []):
        lines = path.read_text(errors="replace").split("\n") if path.is_file() else []
        said = [line.strip() for line in lines if line.strip()]
        found += [f"{path}: {said[-1][:300]}"] if said else []
    return found


class LogHandler(LogHandlerBase):  # type: ignore[misc]
    """Events in, lines out on stderr. Warnings and errors pass through."""

    writes_to_stream = has_filter = has_formatter = True
    writes_to_file = needs_rulegraph = False

    def __post_init__(self) -> None:
        try:
            self.hook = hook.load(self.settings.hook if self.settings else None)
        except ValueError as error:
            raise WorkflowError(str(error)) from None
        self.progress = Progress(self.hook)
        self.jobs: dict[str, int] = {}
        self.planned: list[Mapping[str, str]] = []

    def emit(self, record: Record) -> None:
        try:
            self.show(record)
        except Exception:  # the thread that calls would end, and all that follows be lost
            self.handleError(record)

    def show(self, record: Record) -> None:
        event = getattr(record, "event", None)
        if self.common_settings.dryrun:
            self.plan(record, event)
        elif event == LogEvent.RUN_INFO:
            stats = getattr(record, "stats", {})
            self.progress.total = sum(number for rule, number in stats.items() if self.is_counted(rule))
        elif event == LogEvent.JOB_INFO and self.is_counted(record.rule_name):
            self.progress.start(record.jobid, record.rule_name, record.wildcards or {})
        elif event == LogEvent.JOB_FINISHED:
            self.progress.finish(record.job_id)
        elif event == LogEvent.JOB_ERROR:
            self.progress.drop(record.jobid)
            self.tell(record)
            if line := self.hook.explain_error():
                self.progress.line(line)
        elif record.getMessage() == NOTHING_TO_BE_DONE_MSG:
            self.hook.nothing_to_do()
        elif record.getMessage().startswith(STOPS):
            self.progress.line(
                "stopping, as was asked: jobs of a cluster are called off, jobs of this machine end first"
            )
        elif getattr(record, "progress", False):  # an executor's: what it submitted, what jobs wait for
            self.progress.line(record.getMessage())
        elif record.levelno >= logging.WARNING or event == LogEvent.ERROR:
            self.tell(record)

    def is_counted(self, rule: str) -> bool:
        return rule != "total" and self.hook.counts(rule)

    def tell(self, record: Record) -> None:
        """What went wrong, and the executor's reason and the last lines of the logs, which say why."""
        reason = (getattr(record, "rule_msg", None) or "").partition(HINT)[0].strip(" .")
        for line in (record.getMessage(), *filter(None, [reason]), *last_lines(record)):
            self.progress.line(line)

    def plan(self, record: Record, event: LogEvent | None) -> None:
        """Of a dry run: which jobs there would be, and what the hook says of those that it counts, at its end."""
        if event == LogEvent.RUN_INFO:
            self.jobs = {rule: number for rule, number in record.stats.items() if rule != "total"}
        elif event == LogEvent.JOB_INFO and self.is_counted(record.rule_name):
            self.planned.append(record.wildcards or {})
        elif record.getMessage() == NOTHING_TO_BE_DONE_MSG:
            self.progress.line("dry run: nothing to be done")
        elif record.getMessage().startswith(DRY_RUN_ENDS):
            jobs = ", ".join(f"{number} {rule}" for rule, number in self.jobs.items())
            self.progress.line(f"dry run: nothing is started; a run would have these jobs: {jobs}")
            for line in self.hook.describe_plan(self.planned):
                self.progress.line(line)
        elif record.levelno >= logging.WARNING:
            self.progress.line(record.getMessage())

    def filter(self, record: Record) -> bool:
        return not self.hook.is_expected(record.getMessage())

    def close(self) -> None:
        """Snakemake closes its handlers last."""
        super().close()
        self.hook.close()
