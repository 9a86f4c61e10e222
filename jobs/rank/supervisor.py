"""Supervises one rank: starts its worker (under nsys when asked), and writes how it ended, however it ended.

Started by jobs/launch/launch.py, as a local process or as a task of srun, so that both leave the same evidence:

    python -m jobs.rank.supervisor POINT/timed

The first rank of a node also starts the node's samplers, and notes what the node is.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from jobs.host import facts, gpus
from jobs.host.processes import die_with_parent, out_of_memory_kills, signal_group
from jobs.point.point import of_job
from jobs.record.folder import Look, read_json, write_json
from jobs.telemetry.samplers import Started
from jobs.telemetry.trace import nsys

SLURM_NAMES = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}


def adopt_slurm_names() -> None:
    """Under srun, torch's variables from Slurm's."""
    for name, slurm in SLURM_NAMES.items():
        if name not in os.environ:
            os.environ[name] = os.environ[slurm]


def main() -> int:
    die_with_parent(signal.SIGTERM)
    adopt_slurm_names()
    look, rank = Look(Path(sys.argv[1])), int(os.environ["RANK"])
    point = of_job(read_json(look.point_file))
    command = [sys.executable, "-m", "jobs.rank.worker", str(look.folder)]
    under_nsys = os.environ.get("NIGHTSWEEP_TRACER") == "nsys" and point.traces(rank)
    owner = uuid.uuid4().hex
    if under_nsys:
        command = nsys.profile_command(look, rank, point) + command
    first = os.environ["LOCAL_RANK"] == "0"
    samplers = Started(look, point.nvml_hz) if first else None  # before the rank, whose control holds them still
    kills = out_of_memory_kills()
    with look.rank_file(rank, "log").open("ab") as log:
        env = {**os.environ, nsys.OWNER_VARIABLE: owner}
        if given := os.environ.get(gpus.OF_RANKS_VARIABLE):
            env["CUDA_VISIBLE_DEVICES"] = given
        worker = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    told: list[int] = []

    def hand_on(number: int, _: Any) -> None:
        told.append(number)
        if under_nsys and number == signal.SIGUSR1:
            nsys.ask_for_stacks(owner)
        else:
            signal_group(worker, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, hand_on)
    write_json(look.rank_file(rank, "pid.json"), {"rank": rank, "host": socket.gethostname(), "pid": worker.pid})
    if first:
        write_json(look.host(socket.gethostname()), facts.host())
    code = worker.wait()
    ended = time.time_ns()
    signal_group(worker, signal.SIGKILL)  # loader workers, or what nsys left
    if under_nsys and (code or told):
        nsys.end(owner)
    if code > 128 and under_nsys:  # as a shell tells it
        code = 128 - code
    write_json(
        look.rank_file(rank, "exit.json"),
        {
            "rank": rank,
            "host": socket.gethostname(),
            "exit_code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "out_of_memory": code == -signal.SIGKILL and out_of_memory_kills() > kills,
            "ended_ns": ended,
        },
    )
    if samplers is not None:
        samplers.end()
    return 0 if code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
