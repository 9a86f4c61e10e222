"""The scheduler behind the executor: submit an array through submitit, ask for all states at once, cancel.

submitit's own waiting is not used: without accounting it never ends, and with it every job asks for itself.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from snakemake_executor_plugin_submitit import command, query
from snakemake_executor_plugin_submitit.refusal import Refused, error_of, is_transient
from snakemake_executor_plugin_submitit.request import Request

ACTIVE = frozenset(
    {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD"}
    | {"RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)

PATIENCE_S = 300
ASK_AGAIN_S = 2


@dataclass(frozen=True)
class State:
    """What the scheduler says of a job. nodes: where it runs or ran, in the scheduler's notation."""

    name: str
    nodes: str = ""
    why: str = ""

    @property
    def active(self) -> bool:
        return self.name in ACTIVE


def forget_allocation() -> None:
    """Drop what an enclosing allocation left in the environment: jobs submitted from a batch job or an interactive one
    must not inherit its memory, its GPUs or its CPU binding. Where the cluster is found (SLURM_CONF) stays. Outside of
    one too: what a user has set (SBATCH_PARTITION) would go before the profile, for sbatch takes it so."""
    if "SLURM_JOB_ID" in os.environ:
        for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"):
            os.environ.pop(name, None)
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SBATCH_", "SRUN_", "SLURMD_", "SALLOC_")) and name != "SLURM_CONF":
            del os.environ[name]


def _read_config(warn: Callable[[str], object]) -> dict[str, str]:
    until, told = time.monotonic() + PATIENCE_S, False
    while True:
        try:
            return query.parse_config(query.read("scontrol", "show", "config"))
        except query.Unreachable as error:
            if not is_transient(str(error)) or time.monotonic() > until:
                raise
            if not told:
                warn(f"the scheduler does not answer; it is waited for: {error}")
            told = True
        time.sleep(ASK_AGAIN_S)


class Slurm:
    """One Slurm cluster."""

    def __init__(self, warn: Callable[[str], object]) -> None:
        """Waits a while for a controller that is being restarted. Raises Refused and Unreachable."""
        if shutil.which("sbatch") is None:
            raise Refused("no sbatch on the PATH: is this a login node of a Slurm cluster?")
        config = _read_config(warn)
        self.accounting = query.has_accounting(config)
        self.cluster = config.get("ClusterName", "")
        self.largest_array = max(1, (query.whole(config, "MaxArraySize") or 1001) - 1)

    def submit(self, folder: Path, name: str, request: Request, commands: list[str], parallel: int) -> list[str]:
        """Send the commands as one array; their job ids. Raises Refused, TooMany or Unreachable; and OSError where a
        file cannot be made, when Slurm may have taken the jobs."""
        executor = submitit.SlurmExecutor(folder=folder)
        executor.update_parameters(
            job_name=name, array_parallelism=parallel, use_srun=False, stderr_to_stdout=True, **request.parameters()
        )
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit repeats there what the error says
                jobs = executor.map_array(command.run, commands)
        except (FailedJobError, FailedSubmissionError, subprocess.SubprocessError) as error:
            raise error_of(str(error) or _unsaid(error)) from None
        return [job.job_id for job in jobs]

    def find(self, name: str, size: int) -> list[str] | None:
        """Ids of the jobs of an array that was submitted under this name; None when the scheduler knows none."""
        if self.accounting:
            text = query.read("sacct", "-X", "-n", "-P", "-S", "now-30days", "-o", "JobID", f"--name={name}")
        else:
            text = query.read("squeue", "-h", "-t", "all", "-o", "%i", f"--name={name}")
        found = re.search(r"^(\d+)", text, re.MULTILINE)
        if found is None:
            return None
        return [found[1]] if size == 1 else [f"{found[1]}_{i}" for i in range(size)]

    def states(self, ids: Iterable[str]) -> dict[str, State]:
        """States of these jobs; those that the scheduler does not know are absent. Raises Unreachable.

        One query for all. Accounting does not say what pending jobs wait for, and never learns an end that the
        controller could not tell it: while it has any of them pending or at work, the controller is asked too, and is
        right.
        """
        queue = ("squeue", "-h", "-r", "-a", "--me", "-t", "all", "-o", "%i|%T|%N|%r")
        if not self.accounting:
            return parse(query.read(*queue))
        asked = ",".join(masters(ids))
        found = parse(query.read("sacct", "-X", "-n", "-P", "-o", "JobID,State,NodeList", "-j", asked))
        if not any(state.active for state in found.values()):
            return found
        known = parse(query.read(*queue))
        return {i: known.get(i, state) for i, state in found.items() if i in known or not state.active}

    def most_nodes(self, partition: str | None) -> int:
        """Nodes that a job in this partition (the default; the largest of several) can have, be they up or not."""
        text = query.read("scontrol", "-o", "show", "partition")
        shown = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in text.splitlines()]
        names = (
            partition.split(",") if partition else [one["PartitionName"] for one in shown if one["Default"] == "YES"]
        )
        own = [one for one in shown if one.get("PartitionName") in names]
        sizes = [min(int(one[key]) for key in ("TotalNodes", "MaxNodes") if one[key].isdigit()) for one in own]
        return max(sizes, default=0)

    def bad_nodes(self, nodes: str) -> list[str]:
        """Which of these nodes are down or not answering."""
        if not nodes or nodes.startswith("None"):
            return []
        listed = query.read("sinfo", "-h", "-N", "-n", nodes, "-o", "%N|%T").splitlines()
        bad = ("down", "fail", "drain", "unk", "*")
        return sorted({line.split("|")[0] for line in listed if any(word in line.split("|")[1] for word in bad)})

    def cancel(self, ids: Iterable[str], names: Iterable[str]) -> None:
        """Cancel jobs: elements of arrays, whole ones (whose ended elements do not mind), and arrays by their names."""
        if found := list(ids):
            query.read("scancel", *found)
        for name in names:
            query.read("scancel", f"--name={name}")


def _unsaid(error: BaseException) -> str:
    """What an sbatch that wrote nothing to its standard error has printed, or how it ended."""
    cause = error.__cause__
    output, status = getattr(cause, "output", ""), getattr(cause, "returncode", "")
    return str(output or f"sbatch: exit status {status}, without a word")


def masters(ids: Iterable[str]) -> list[str]:
    """The ids of whole arrays."""
    return sorted({i.split("_")[0] for i in ids})


def parse(text: str) -> dict[str, State]:
    """States by job id from lines `id|state|nodes|reason`, where pending elements may stand as `7_[0-3,9%2]`."""
    found: dict[str, State] = {}
    for line in text.splitlines():
        job_id, name, nodes, why = [*line.split("|"), "", "", ""][:4]
        if name:
            state = State(name.split()[0].rstrip("+"), nodes, why)
            found |= dict.fromkeys(expand(job_id), state)
    return found


def expand(job_id: str) -> list[str]:
    """The ids of the elements that Slurm prints as one, such as `7_[0-3,9%2]` or `7_[0-12:4]`."""
    match = re.fullmatch(r"(\d+)_\[([\d,\-:]+)(%\d+)?\]", job_id)
    if match is None:
        return [job_id]
    ids = []
    for part in match[2].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        ids += [f"{match[1]}_{i}" for i in range(int(first), int(last or first) + 1, int(step or 1))]
    return ids
