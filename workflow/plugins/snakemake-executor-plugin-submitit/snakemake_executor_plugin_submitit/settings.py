"""Settings of the executor: `--submitit-NAME` on the command line, `submitit-NAME` in a profile.

What belongs to one rule or job (partition, account, ...) may also be a resource of it; see request.py.
"""

# Snakemake reads the types of these fields, so they must not be put off (no `from __future__ import annotations`).
from dataclasses import dataclass, field
from typing import Any, Optional

from snakemake_interface_executor_plugins.settings import ExecutorSettingsBase


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text, "env_var": False, "required": False})


@dataclass
class ExecutorSettings(ExecutorSettingsBase):  # type: ignore[misc]
    """How jobs go to the scheduler. None: left to the cluster's own default."""

    cluster: str = _setting("slurm", "slurm, or local: the same code as processes of this machine")
    array_size: int = _setting(1000, "Most jobs in one array; the cluster's MaxArraySize also holds")
    array_parallelism: int = _setting(256, "Most elements of one array that run at once")
    poll_s: int = _setting(30, "Most seconds between two queries to the scheduler; one asks for all jobs")
    resubmissions: int = _setting(2, "How often a job that lost its node, or was preempted, is submitted again")
    account: Optional[str] = _setting(None, "Account to charge")
    partition: Optional[str] = _setting(None, "Partition")
    partition_config: Optional[str] = _setting(
        None, "Instead of a partition: YAML file of several with their limits; each job goes to the first it fits into"
    )
    qos: Optional[str] = _setting(None, "Quality of service")
    constraint: Optional[str] = _setting(None, "Features that nodes must have")
    exclude: Optional[str] = _setting(None, "Nodes to stay away from")
    reservation: Optional[str] = _setting(None, "Reservation")
    exclusive: bool = _setting(False, "Nodes for one job alone, so that no other job disturbs what it measures")
    extra: Optional[str] = _setting(None, "More sbatch options, as on its command line: --mail-type=END --nice=10")
    setup: Optional[str] = _setting(None, "Shell lines before the job's command: module load ..., export ...")
    efficiency_report: Optional[str] = _setting(
        None, "CSV file for a table at the end: what each job used of the CPUs and the memory it was given"
    )
    hook: Optional[str] = _setting(None, "What knows how the workflow's jobs end: MODULE:CLASS, see hook.py")
