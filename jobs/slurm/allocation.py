"""Inside a Slurm allocation: its nodes, its end, and the srun that starts all ranks."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from datetime import datetime

import psutil

from nightsweep.jobs.host import clock
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.record.failures import Reason

MARGIN_S = 60.0
"""Before the allocation ends, the launcher needs so long to stop its ranks and to write what happened."""

TIMEOUT_S = 30.0

BEGAN_NS = round(psutil.Process().create_time() * 1e9)
"""When this process began, by the wall clock as it is now, at its start, when a launch reads its own clock from it too:
later, psutil's answer moves where somebody sets the wall clock."""

# What srun and slurmstepd print when it is not the ranks' own fault.
_BLAMES: tuple[tuple[re.Pattern[str], Reason], ...] = (
    (re.compile(r"node failure on |due to node failure", re.IGNORECASE), "node_failure"),
    (re.compile(r"task launch for \S+ failed on node |required node not available", re.IGNORECASE), "node_failure"),
    (re.compile(r"due to preemption", re.IGNORECASE), "preempted"),
    (re.compile(r"due to time limit", re.IGNORECASE), "time_limit"),
)
AWAY = re.compile(r"unable to contact slurm controller|socket timed out|unable to confirm allocation", re.IGNORECASE)
"""As srun says it that could not start ranks because the controller did not answer."""


def inside() -> bool:
    return "SLURM_JOB_ID" in os.environ


def first_host() -> str:
    """Where rank 0 runs: the first node, under srun's block distribution."""
    names = _scontrol("show", "hostnames", os.environ.get("SLURM_JOB_NODELIST", "")).split()
    return names[0] if names else socket.gethostname()


def job_id() -> str | None:
    """The id of this process's job as submitit has it: ARRAY_PLACE of one in an array; None outside of Slurm."""
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        # The last job of an array has the array's own number, by which Slurm tells of all its jobs.
        return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ.get("SLURM_JOB_ID")


def _job() -> str:
    """What Slurm says of this process's job; empty outside of one, and where it does not answer."""
    number = job_id()
    return _scontrol("-o", "show", "job", number) if number else ""


def _scontrol(*words: str) -> str:
    """What scontrol prints, times in UTC, for an hour of local time may come twice; empty where it fails or hangs. A
    user's own format of times could not be read."""
    own = {name: value for name, value in os.environ.items() if name != "SLURM_TIME_FORMAT"} | {"TZ": "UTC0"}
    try:
        done = subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=TIMEOUT_S, env=own)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def times_ns() -> dict[str, int]:
    """Times that Slurm gives of this job, UTC ns, to the second: SubmitTime, StartTime and EndTime; without those that
    are not known or, of the end, not limited."""
    found = re.findall(r"\b(SubmitTime|StartTime|EndTime)=(\d\S+)", _job())
    return {name: round(datetime.fromisoformat(f"{text}+00:00").timestamp()) * 1_000_000_000 for name, text in found}


def seconds_left() -> float | None:
    """Until Slurm ends this job; None outside of one, and where that is not known or not limited. Slurm's times are by
    the clock of its controller: no process begins before its job, so where this one seems to, this host's clock is
    behind."""
    times = times_ns()
    if "EndTime" not in times:
        return None
    behind_ns = max(0, times.get("StartTime", 0) - BEGAN_NS)
    return (times["EndTime"] - clock.now_ns() - behind_ns) / 1e9


def is_ending() -> bool:
    """Whether Slurm is ending this process's job: cancelled, preempted, out of time, or on a node that failed."""
    state = re.search(r"JobState=(\w+)", _job())
    return state is not None and state[1] not in ("RUNNING", "SUSPENDED", "PENDING")


def python() -> list[str]:
    """The command that starts Python for ranks: this Python, or the one that the executor's settings name."""
    return shlex.split(os.environ.get("NIGHTSWEEP_PYTHON", "")) or [sys.executable]


def srun(point: Point, command: list[str], tasks: int) -> list[str]:
    """srun of `tasks` tasks on each of a point's nodes. Every number is given: what srun takes from the environment
    differs between versions."""
    shape = [f"--nodes={point.nodes}", f"--ntasks={point.nodes * tasks}", f"--ntasks-per-node={tasks}"]
    cpus = os.environ.get("SLURM_CPUS_PER_TASK")
    if cpus:  # not inherited since Slurm 22.05; a launcher has those of all ranks that it starts
        shape.append(f"--cpus-per-task={int(cpus) * point.tasks_per_node // tasks}")
    return ["srun", *shape, "--distribution=block", "--kill-on-bad-exit=0", "--export=ALL", *command]


def environment() -> dict[str, str]:
    """This process's variables without the CPU and memory binding of an enclosing step, which srun would repeat."""
    bound = ("SLURM_CPU_BIND", "SLURM_MEM_BIND", "SLURM_DISTRIBUTION")
    return {name: value for name, value in os.environ.items() if not name.startswith(bound)}


def blame(log: str) -> tuple[Reason, str] | None:
    """Reason and line, where Slurm itself says why the ranks of this log ended."""
    for line in log.splitlines():
        for pattern, reason in _BLAMES:
            if pattern.search(line):
                return reason, line.strip()[:300]
    return None
