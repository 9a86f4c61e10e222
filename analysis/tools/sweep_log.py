"""What Snakemake's screen says of a sweep: its points, what they cost, how they ended (`logger-nightsweep-hook` in the
profiles)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from snakemake_logger_plugin_nightsweep.hook import Hook

from nightsweep.analysis.sweep.labels import duration, plural
from nightsweep.analysis.tools import size
from nightsweep.jobs.record.json_files import read_json
from nightsweep.jobs.record.record import Record, ending
from nightsweep.jobs.sweep.driver import Run, tell_full_disk
from nightsweep.jobs.sweep.estimate import estimate

POINT_RULE = re.compile(r"(.*_)?point")
"""Its name may have a prefix, where another workflow uses this one as a module."""
EXPECTED = re.compile(
    r"Cannot restore .*record\.json: no backup found\.|"
    r".*rule (.*_)?led_point were not present when the DAG was created.*",
    re.DOTALL,
)
"""What Snakemake warns of a point that left no record and had none before, and of one whose record the job of another
point has written."""


class SweepLog(Hook):
    """The points of the sweep that the Snakefile has read."""

    noun = "point"

    def counts(self, rule: str) -> bool:
        return POINT_RULE.fullmatch(rule) is not None

    def name(self, rule: str, wildcards: Mapping[str, str]) -> str:
        return wildcards["point"]

    def outcome(self, wildcards: Mapping[str, str]) -> tuple[bool, str]:
        path = Path("results", wildcards["sweep"], "points", wildcards["point"], "record.json")
        record = read_json(path, Record)
        if record is None or record.status != "ok":
            return False, ending(record)
        return True, f"ok in {duration(record.wall_s or 0)}"

    def covers(self, wildcards: Mapping[str, str]) -> int:
        run, point = Run.latest, wildcards["point"]
        if run is None or point in run.leaders:
            return int(run is None)
        return 1 + sum(not run.record_path(other).exists() for other in run.queue(point)[1:])

    def is_expected(self, warning: str) -> bool:
        return EXPECTED.fullmatch(warning) is not None

    def describe_plan(self, jobs: Sequence[Mapping[str, str]]) -> list[str]:
        """How many points are to run, of how many, and what they cost."""
        if (run := Run.latest) is None:
            return []
        points = [run.point(job["point"]) for job in jobs]
        title = f"{run.sweep.name}: {len(points)} of {plural(len(run.own), 'point')} to run"
        return [title, *(size.cost_lines(estimate(points)) if points else [])]

    def explain_error(self) -> str:
        return tell_full_disk(Run.latest.folder) if Run.latest else ""

    def nothing_to_do(self) -> None:
        if Run.latest:
            Run.latest.summarize()

    def close(self) -> None:
        """Where nothing was to be done, Snakemake calls no hook that could say by the exit status that points are not
        ok."""
        if Run.latest:
            Run.latest.end()
