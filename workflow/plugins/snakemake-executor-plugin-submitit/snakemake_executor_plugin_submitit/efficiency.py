"""The efficiency report (`submitit-efficiency-report`): what the jobs of a run used of what they were given.

The numbers are those of Slurm's accounting, which keeps them for each step of a job; its batch script is one of these.
"""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_submitit import query
from snakemake_executor_plugin_submitit.scheduler import ASK_AGAIN_S, State, expand, masters

KEY = "submitit-efficiency-report"
SETTLE_S = 20
"""How long the report waits for the accounting, which lags behind the files that jobs leave at their end."""
_FIELDS = "JobID,State,ElapsedRaw,TotalCPU,MaxRSS,ReqTRES,AllocTRES,NodeList"
_COLUMNS = (
    *("job_id", "rule", "state", "elapsed_s", "cpus", "cpu_efficiency_percent"),
    *("req_mem_mb_per_node", "max_rss_mb", "gpus", "nodes"),
)
_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


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

    def write(self, settle_s: float) -> None:
        """Write the table once all jobs have come to rest, at the latest after this time."""
        if self.path is None or not self.rules:
            return
        try:
            rows = self._ask(time.monotonic() + settle_s)
            with self.path.open("w", newline="") as sink:
                table = csv.DictWriter(sink, _COLUMNS)
                table.writeheader()
                table.writerows(rows)
        except (query.Unreachable, OSError) as error:
            self.warn(f"{KEY}: {self.path}: not written: {error}")

    def _ask(self, until: float) -> list[dict[str, Any]]:
        command = ("sacct", "-n", "-P", "-o", _FIELDS, "-j", ",".join(masters(self.rules)))
        while True:
            rows = parse(query.read(*command), self.rules)
            if time.monotonic() > until or not any(State(row["state"]).active for row in rows):
                return rows
            time.sleep(ASK_AGAIN_S)


def parse(text: str, rules: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows of these jobs, from lines of sacct with `_FIELDS`: one a job, followed by one for each of its steps."""
    rows: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        job_id, state, elapsed, used, rss, *tres, nodes = line.split("|")
        job_id, _, step = job_id.partition(".")
        if step and job_id in rows:
            sizes = [size for size in (rows[job_id]["max_rss_mb"], _mb(rss)) if size is not None]
            rows[job_id]["max_rss_mb"] = max(sizes, default=None)
            continue
        # Memory is among what was given only where Slurm keeps count of it.
        asked, given = (dict(re.findall(r"([^=,]+)=([^=,]+)", part)) for part in tres)
        cpu_s, memory = int(elapsed) * int(given.get("cpu", 0)), _mb(asked.get("mem", ""))
        row = {
            "state": state.partition(" ")[0],
            "elapsed_s": elapsed,
            "cpus": given.get("cpu"),
            "cpu_efficiency_percent": round(6000 * query.parse_minutes(used) / cpu_s, 1) if cpu_s else None,
            "req_mem_mb_per_node": memory and memory / int(asked.get("node", 1)),
            "max_rss_mb": None,
            "gpus": given.get("gres/gpu"),
            "nodes": "" if nodes.startswith("None") else nodes,
        }
        rows |= {one: {"job_id": one, "rule": rules[one], **row} for one in expand(job_id) if one in rules and not step}
    return list(rows.values())


def _mb(text: str) -> float | None:
    """A size of Slurm's, such as 1.5G; None where there is none."""
    found = re.fullmatch(r"([\d.]+)([KMGT])", text)
    return round(float(found[1]) * _MB[found[2]], 1) if found else None
