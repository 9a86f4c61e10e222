"""What it means when Slurm does not take a job: come back later, send fewer at a time, or never; and what to change."""

from __future__ import annotations

import re
from collections.abc import Mapping

from snakemake_executor_plugin_submitit.query import Unreachable


class TooMany(Exception):
    """A limit on the number of jobs in the queue, or in one array, is reached. `doubtful`: Slurm did not name the
    limit, so it may be one of size or time, which waiting does not change."""

    def __init__(self, text: str, doubtful: bool = False) -> None:
        super().__init__(text)
        self.doubtful = doubtful


class Refused(Exception):
    """The scheduler will not take the request, now or later."""


# What sbatch says when the controller, not the request, is at fault. The job may still have been accepted.
_TRANSIENT = re.compile(
    r"unable to contact slurm controller|socket timed out|connection (refused|timed out)|backup controller|"
    r"slurm_receive_msg|zero bytes were transmitted|slurmdbd|transport endpoint|protocol authentication|"
    r"munge encode failed|message (send|receive) failure|communication \w+ failure|standby mode|job record, try again|"
    r"i/o error writing|connection reset",
    re.IGNORECASE,
)
# Slurm names the limit since version 20; older ones have one sentence for limits on numbers, sizes and times.
_TOO_MANY = re.compile(
    r"\b(QOS|Assoc)\w*Submit\w*|temporarily una\w+|job queue full|invalid job array spec", re.IGNORECASE
)
_UNNAMED = re.compile(r"^(?!.*\b(QOS|Assoc)[A-Z]).*violates accounting/QOS policy")
_NEVER = re.compile(
    r"(QOS|Assoc)(Max\w+PerJob|Min)\w*|Partition(Time|Node)Limit|MaxMemPerLimit|BadConstraints|Invalid(Account|QOS)"
)
_CHANGE = (
    (r"invalid account", ("submitit-account",)),
    (r"invalid partition", ("submitit-partition",)),
    (r"invalid qos", ("submitit-qos",)),
    (r"feature|constraint", ("submitit-constraint",)),
    (r"reservation", ("submitit-reservation",)),
    (r"gres|gpu", ("submitit-partition", "gpus_per_node")),
    (r"time.?limit|wall", ("runtime",)),
    (r"memory|mem(per|limit)", ("mem_mb",)),
    (r"cpu", ("cpus_per_task", "tasks_per_node")),
    (r"nodelimit|nodeper", ("nodes", "submitit-partition")),
    (r"node (configuration|count)", ("mem_mb", "cpus_per_task", "nodes", "tasks_per_node", "submitit-partition")),
    (r"option|argument", ("submitit-extra",)),
)


def is_transient(text: str) -> bool:
    """Whether a complaint is of a controller that does not answer, which may pass."""
    return _TRANSIENT.search(text) is not None


def error_of(text: str) -> Unreachable | TooMany | Refused:
    """What sbatch's complaint is, as the error to raise; its text is Slurm's own, in one line."""
    lines = [
        re.sub(r"^.*?\berror: (Batch job submission failed: )?", "", line).strip()
        for line in text.splitlines()
        if "error" in line.lower()
    ]
    said = "; ".join(dict.fromkeys(lines))[:300] or text.strip()[:300]
    if _TOO_MANY.search(said):
        return TooMany(said)
    if _UNNAMED.search(said):
        return TooMany(said, doubtful=True)
    return (Unreachable if is_transient(said) else Refused)(said)


def never_passes(reason: str) -> bool:
    """Whether a job that waits for this reason (of squeue's) waits for ever."""
    return bool(_NEVER.match(reason))


def change(text: str, places: Mapping[str, str]) -> str:
    """What to change where Slurm says this; empty where that is not known. `places`: where resources are
    set (hook.py)."""
    names = next((names for pattern, names in _CHANGE if re.search(pattern, text, re.IGNORECASE)), ())
    found = [f"`{n}` in the profile" if n.startswith("submitit-") else places.get(n, f"resource `{n}`") for n in names]
    return " or ".join(dict.fromkeys(found))


def advised(text: str, places: Mapping[str, str]) -> str:
    """Slurm's words and what to change."""
    return f"{text} (change {key})" if (key := change(text, places)) else text
