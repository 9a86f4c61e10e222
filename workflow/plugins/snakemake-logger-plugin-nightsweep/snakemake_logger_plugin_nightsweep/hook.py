"""What a workflow tells the logger of its jobs, by the setting `logger-nightsweep-hook`: MODULE:CLASS, a subclass of
`Hook`. `Hook` itself serves any workflow: it counts all jobs."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence


class Hook:
    """The jobs of any workflow."""

    noun = "job"

    def counts(self, rule: str) -> bool:
        """Whether the progress is that of this rule's jobs."""
        return True

    def name(self, rule: str, wildcards: Mapping[str, str]) -> str:
        """What a job is called on the screen."""
        return " ".join([rule, *wildcards.values()])

    def outcome(self, wildcards: Mapping[str, str]) -> tuple[bool, str]:
        """Whether a job that has ended left a good result, and how it ended, in words."""
        return True, "ok"

    def covers(self, wildcards: Mapping[str, str]) -> int:
        """How many jobs' work a job that begins will do: its own, and that of those that then only take over what it
        has made, which do none."""
        return 1

    def is_expected(self, warning: str) -> bool:
        """Whether a warning is of what is as it should be, and is not shown."""
        return False

    def describe_plan(self, jobs: Sequence[Mapping[str, str]]) -> list[str]:
        """Lines at the end of a dry run, on the jobs that would run, by their wildcards."""
        return []

    def explain_error(self) -> str:
        """A line on a job's error that its log could not tell; empty where there is none."""
        return ""

    def nothing_to_do(self) -> None:
        """Nothing had to be run, so that Snakemake calls neither onsuccess nor onerror."""

    def close(self) -> None:
        """The last call of a run. It may raise SystemExit with the run's exit status."""


def load(name: str | None) -> Hook:
    """The hook of this name. Raises ValueError."""
    try:
        found = pkgutil.resolve_name(name)() if name else Hook()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"logger-nightsweep-hook: {name}: {error}; MODULE:CLASS was expected") from None
    if not isinstance(found, Hook):
        raise ValueError(f"logger-nightsweep-hook: {name}: is no subclass of {__name__}.Hook")
    return found
