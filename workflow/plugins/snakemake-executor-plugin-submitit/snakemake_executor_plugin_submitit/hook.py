"""What a workflow tells the executor of its jobs, by the setting `submitit-hook`: MODULE:CLASS, a subclass of `Hook`.

`Hook` itself serves any workflow: a job's exit status and the scheduler say how it ended.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

LossReason = Literal[
    "node_failure",
    "preempted",
    "time_limit",
    "host_out_of_memory",
    "cancelled",
    "launch_failed",  # the scheduler refused the job, or its command did not begin
    "lost",  # it is gone without a word
    "failed",  # its command did
]


@dataclass(frozen=True)
class Loss:
    """Why a job left no result of its own. again: the same job elsewhere, or later, may well succeed."""

    reason: LossReason
    message: str
    again: bool = False

    def named_nodes(self) -> list[str]:
        """Nodes that the message names: Slurm may take minutes to notice that they are gone."""
        return re.findall(r"(?:Node failure on|on node) ([\w.-]*\w)", self.message)


Verdict = Literal["missing", "ok", "failed", "doubtful"] | Loss | None
"""What a job says of its own end. missing: nothing yet; failed: that is its result; doubtful: the death of its node
would look the same from inside, so the scheduler decides; a Loss: it says nothing of the work; None: such jobs leave no
account of their end."""


class Hook:
    """The jobs of a workflow that keeps no account of them."""

    places: ClassVar[Mapping[str, str]] = {}
    """Where a user sets nodes, gpus_per_node, runtime, mem_mb and cpus_per_task, if not as resources of the rule."""

    parts = "parts"
    """What `count_rest` counts."""

    def verdict(self, job: Any) -> Verdict:
        """What the job says of its own end."""
        return None

    def has_begun(self, job: Any, job_id: str | None = None) -> bool:
        """Whether a job that left no account had begun its work, so that it is lost, and not refused; with an id,
        whether that job of the scheduler has."""
        return False

    def count_rest(self, job: Any) -> int:
        """How much of its work a job that ended has left for another job, for want of time."""
        return 0

    def take_back(self, job: Any, lost_id: str | None) -> None:
        """Remove what would keep a job that is sent again, lost (with this id) or for the rest of its work, from being
        seen to end."""

    def record_begun(self, job: Any, loss: Loss, losses: int, job_id: str | None) -> int:
        """Of a job that would be lost again, or may be sent for the last time: write down the loss of what it had
        begun, which nobody is to begin again; how much of its work it had not come to, and another job may do. 0: there
        is none, or the job had better begin all of it again, and nothing was written."""
        return 0

    def record_loss(self, job: Any, loss: Loss, losses: int, job_id: str | None) -> bool:
        """Write down that the job is lost for good, after so many earlier losses; whether that is its result, so that
        the workflow goes on."""
        return False


def load(name: str | None) -> Hook:
    """The hook of this name. Raises ValueError."""
    try:
        found = pkgutil.resolve_name(name)() if name else Hook()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"submitit-hook: {name}: {error}; MODULE:CLASS was expected") from None
    if not isinstance(found, Hook):
        raise ValueError(f"submitit-hook: {name}: is no subclass of {__name__}.Hook")
    return found
