"""The efficiency report (`submitit-efficiency-report`): what the jobs of a run used of what they were given.

The numbers are those of Slurm's accounting, which keeps them for each step of a job; the batch step is one of these.
"""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_submitit import query
from snakemake_executor_plugin_submitit.scheduler import ASK_AGAIN_S, State, masters

KEY = "submitit-efficiency-report"
SETTLE_S = 20
"""A job's end is seen before its accounting is complete; later ones stay as they are."""
_FIELDS = "JobID,State,ElapsedRaw,TotalCPU,MaxRSS,AllocTRES,NodeList"
_COLUMNS = (
    *("job_id", "rule", "state", "elapsed_s", "cpus", "cpu_efficiency_percent"),
    *("mem_mb_per_node", "max_rss_mb", "gpus", "nodes"),
)
_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
Row = dict[str, Any]


class Report:
    """A file with a row for each job. Without a file, or without accounting, it does nothing."""

    def __init__(self, file: str | None, accounting: bool, warn: Callable[[str], object]) -> None:
        """Raises ValueError where the file could not be written."""
        self.path = Path(file).absolute() if file and accounting else None
        self.warn = warn
        self.rules: dict[str, str] = {}
        if file and not accounting:
            warn(f"{KEY}: there will be none, for it needs Slurm's accounting (slurmdbd), which is not there")
        if self.path and (self.path.is_dir() or not self.path.parent.is_dir()):
            raise ValueError(f"{KEY}: {file}: a file in a folder that exists was expected")

    def add(self, infos: Iterable[Any]) -> None:
        """Those of these jobs that were submitted."""
        self.rules |= {info.external_jobid: info.job.name for info in infos if info.external_jobid}

    def write(self, settle_s: float) -> str:
        """Write the table once all jobs have come to rest, at the latest after this time; a line for the screen."""
        if self.path is None or not self.rules:
            return ""
        try:
            rows = self._ask(time.monotonic() + settle_s)
            with self.path.open("w", newline="") as sink:
                table = csv.DictWriter(sink, _COLUMNS)
                table.writeheader()
                table.writerows(rows)
        except (query.Unreachable, OSError) as error:
            self.warn(f"{KEY}: {self.path}: not written: {error}")
            return ""
        return f"efficiency report: {self.path}"

    def _ask(self, until: float) -> list[Row]:
        command = ("sacct", "-n", "-P", "-o", _FIELDS, "-j", ",".join(masters(self.rules)))
        while True:
            rows = parse(query.read(*command), self.rules)
            if time.monotonic() > until or not any(State(row["state"]).active for row in rows):
                return rows
            time.sleep(ASK_AGAIN_S)


def parse(text: str, rules: Mapping[str, str]) -> list[Row]:
    """The rows of these jobs, from lines of sacct with `_FIELDS`: one a job, followed by one for each of its steps."""
    rows: dict[str, Row] = {}
    for line in text.splitlines():
        full_id, state, elapsed, used, rss, tres, nodes = line.split("|")
        job_id, _, step = full_id.partition(".")
        if job_id not in rules:
            continue
        if not step:
            rows[job_id] = {"job_id": job_id, "rule": rules[job_id], "state": state.split()[0], "nodes": nodes}
            rows[job_id] |= _allocated(int(elapsed), used, dict(re.findall(r"([^=,]+)=([^=,]+)", tres)))
        elif (size := _megabytes(rss)) is not None and job_id in rows:
            rows[job_id]["max_rss_mb"] = max(rows[job_id].get("max_rss_mb", 0), round(size, 1))
    return list(rows.values())


def _allocated(elapsed_s: int, used: str, tres: Mapping[str, str]) -> Row:
    """What a job was given; empty where it never started."""
    cpus, memory = int(tres.get("cpu", 0)), _megabytes(tres.get("mem", ""))
    given = elapsed_s * cpus
    return {
        "elapsed_s": elapsed_s,
        "cpus": cpus or None,
        "cpu_efficiency_percent": round(100 * 60 * query.parse_minutes(used) / given, 1) if given else None,
        "mem_mb_per_node": None if memory is None else round(memory / int(tres.get("node", 1))),
        "gpus": tres.get("gres/gpu"),
    }


def _megabytes(text: str) -> float | None:
    """A size of Slurm's, such as 1.5G; None where there is none."""
    found = re.fullmatch(r"([\d.]+)([KMGT])", text)
    return float(found[1]) * _MB[found[2]] if found else None
