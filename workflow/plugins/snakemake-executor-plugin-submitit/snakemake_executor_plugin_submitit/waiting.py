"""Lines for the screen: what was submitted, and what jobs wait for. One line for many jobs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_MEANINGS = (
    ("Priority", "other jobs go first"),
    ("Resources", "until nodes are free"),
    ("JobArrayTaskLimit", "as many run as submitit-array-parallelism allows"),
    ("ReqNodeNotAvail", "their nodes are down, drained or reserved"),
    ("PartitionConfig", "more than the partition's nodes have: it may never start (nightsweep doctor)"),
    ("PartitionNodeLimit", "more nodes, or fewer, than the partition gives now"),
    ("Partition", "the partition takes no jobs now"),
    ("JobHeld", "held; scontrol release lets them go"),
    ("QOS", "a limit of the quality of service"),
    ("Assoc", "a limit of the account"),
)
MOST_ARRAYS = 5


def count(number: int) -> str:
    return f"{number} job{'' if number == 1 else 's'}"


def arrays(ids: Iterable[str]) -> str:
    """Job ids as Slurm writes them: 7_[0-11], 8."""
    found: dict[str, list[int]] = {}
    for job_id in ids:
        array, _, place = job_id.partition("_")
        found.setdefault(array, []).extend([int(place)] if place else [])
    words = [f"{array}_{_span(sorted(places))}" if places else array for array, places in found.items()]
    more = f" and {len(words) - MOST_ARRAYS} more arrays" if len(words) > MOST_ARRAYS else ""
    return ", ".join(words[:MOST_ARRAYS]) + more


def _span(places: list[int]) -> str:
    first, last = places[0], places[-1]
    if len(places) == 1:
        return str(first)
    return f"[{first}-{last}]" if last - first + 1 == len(places) else f"[{','.join(map(str, places))}]"


def meaning(reason: str) -> str:
    """A reason of squeue's in plain words; empty where it has none."""
    return next((words for start, words in _MEANINGS if reason.startswith(start)), "")


class Waiting:
    """Says each reason once, with the number of jobs that wait for it; again when it comes back."""

    def __init__(self) -> None:
        self.told: set[str] = set()

    def lines(self, reasons: Iterable[str]) -> list[str]:
        """What to say now that jobs wait for these reasons, one a job."""
        counts = Counter(re.split(r"[(,]", reason)[0].strip() for reason in reasons)  # behind it: which nodes
        del counts["None"], counts[""]
        # Jobs wait for one of these two in turn all night.
        new = [reason for reason in counts if reason not in self.told]
        self.told = (self.told & {"Priority", "Resources"}) | set(counts)
        return [
            f"{count(counts[reason])} in the queue: {reason}" + (f", {meaning(reason)}" if meaning(reason) else "")
            for reason in new
        ]
