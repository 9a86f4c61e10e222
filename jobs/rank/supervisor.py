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
from jobs.record.folder import RunFolder
from jobs.record.json_files import write_json
from jobs.record.launch_files import RankExit, RankProcess
from jobs.sweep.order import read_order
from jobs.telemetry.samplers import Started
from jobs.telemetry.trace import nsys

SLURM_NAMES = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}


STOP_SKEW_S = 0.3
"""Slurm signals the processes of a step one after the other: a rank may die of it before its supervisor hears of it."""


def adopt_slurm_names() -> None:
    """Under srun, torch's variables from Slurm's."""
    for name, slurm in SLURM_NAMES.items():
        if name not in os.environ:
            os.environ[name] = os.environ[slurm]


def was_stopped(received: list[int]) -> bool:
    """Whether one of these signals asks to stop."""
    return signal.SIGTERM in received or signal.SIGINT in received


def main() -> int:
    die_with_parent(signal.SIGTERM)
    adopt_slurm_names()
    run_folder, rank, host = RunFolder(Path(sys.argv[1])), int(os.environ["RANK"]), socket.gethostname()
    order = read_order(run_folder)
    point = order.point()
    command = [sys.executable, "-m", "jobs.rank.worker", str(run_folder.path)]
    under_nsys = order.tracer == "nsys" and point.traces(rank)
    owner = uuid.uuid4().hex
    if under_nsys:
        command = nsys.profile_command(run_folder, rank, point, gpu_metrics=order.gpu_metrics) + command
    first = os.environ["LOCAL_RANK"] == "0"
    samplers = Started(run_folder, order) if first else None  # before the rank, whose control holds them still
    kills = out_of_memory_kills()
    with run_folder.rank_file(rank, "log").open("ab") as log:
        env = {**os.environ, nsys.OWNER_VARIABLE: owner}
        if given := os.environ.get(gpus.OF_RANKS_VARIABLE):
            env["CUDA_VISIBLE_DEVICES"] = given
        worker = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    received: list[int] = []

    def hand_on(number: int, _: Any) -> None:
        received.append(number)
        if under_nsys and number == signal.SIGUSR1:
            nsys.ask_for_stacks(owner)
        else:
            signal_group(worker, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, hand_on)
    write_json(run_folder.rank_file(rank, "pid.json"), RankProcess(rank=rank, host=host, pid=worker.pid))
    if first:
        write_json(run_folder.host(host), facts.host())
    code = worker.wait()
    ended = time.time_ns()
    if code and not was_stopped(received):
        time.sleep(STOP_SKEW_S)
    signal_group(worker, signal.SIGKILL)  # loader workers, or what nsys left
    if under_nsys and (code or received):
        nsys.end(owner)
    if code > 128 and under_nsys:  # as a shell says it
        code = 128 - code
    write_json(
        run_folder.rank_file(rank, "exit.json"),
        RankExit(
            rank=rank,
            host=host,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            out_of_memory=code == -signal.SIGKILL and out_of_memory_kills() > kills,
            stopped=was_stopped(received),
            ended_ns=ended,
        ),
    )
    if samplers is not None:
        samplers.end()
    return 0 if code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
