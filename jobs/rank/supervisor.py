"""Supervises one rank: starts its worker (under nsys when asked), and writes how it ended, however it ended.

A fork of a node's server (jobs/rank/server.py), or, where the rank needs a new Python, started by itself:

    python -m nightsweep.jobs.rank.supervisor POINT/timed

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

from nightsweep.jobs.host import clock, facts, gpus, start
from nightsweep.jobs.host.processes import die_with_parent, end_with_parent, out_of_memory_kills, signal_group
from nightsweep.jobs.point.config_file import ConfigError
from nightsweep.jobs.rank import script
from nightsweep.jobs.record.failures import Reason, is_disk_full
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import write_json
from nightsweep.jobs.record.launch_files import RankError, RankExit, RankProcess, Window
from nightsweep.jobs.sweep.order import read_order
from nightsweep.jobs.telemetry.samplers import Started
from nightsweep.jobs.telemetry.trace import nsys

SLURM_NAMES = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}
PATIENCE_S = 8
"""How long a script may go on after it was asked to end: less than the launcher waits for its ranks."""
STOP_SKEW_S = 0.3
"""Slurm signals the processes of a step one after the other: a rank may die of it before its supervisor hears of it."""


def adopt_slurm_names() -> None:
    """Under srun, torch's variables from Slurm's. A launcher that starts one rank alone says neither."""
    for name, slurm in SLURM_NAMES.items():
        if name not in os.environ and slurm in os.environ:
            os.environ[name] = os.environ[slurm]


def was_stopped(received: list[int]) -> bool:
    """Whether one of these signals asks to stop."""
    return signal.SIGTERM in received or signal.SIGINT in received


def refuse(run_folder: RunFolder, rank: int, error: ConfigError | OSError) -> int:
    """The end of a rank whose script cannot be started."""
    named = isinstance(error, OSError) and error.filename  # a write to a full disk names none
    why = f"{error.filename}: {error.strerror}" if named else str(error)  # type: ignore[union-attr]
    reason: Reason = "disk_full" if is_disk_full(error) else "launch_failed"
    write_json(run_folder.rank_file(rank, "error.json"), RankError(reason=reason, message=why))
    write_json(
        run_folder.rank_file(rank, "exit.json"),
        RankExit(rank=rank, host=socket.gethostname(), exit_code=1, ended_ns=clock.now_ns()),
    )
    return 1


def main() -> int:
    end_with_parent()
    adopt_slurm_names()
    clock.join()
    run_folder, rank = RunFolder(Path(sys.argv[1]).absolute()), int(os.environ.get("RANK", "0"))
    host, local_rank = socket.gethostname(), os.environ.get("LOCAL_RANK", "0")
    order = read_order(run_folder)
    point = order.point()
    own_script = point.workload == "command"
    under_nsys = order.tracer == "nsys" and rank in order.traced_ranks
    owner = uuid.uuid4().hex
    received: list[int] = []
    worker: start.Process | None = None

    def hand_on(number: int) -> None:
        if worker is None:
            return
        if under_nsys and number == signal.SIGUSR1:
            nsys.ask_for_stacks(owner)
        else:
            signal_group(worker.pid, number)
            if own_script and number == signal.SIGTERM:
                signal.alarm(PATIENCE_S)  # a script may not heed it

    def hear(number: int, _: Any) -> None:
        received.append(number)
        hand_on(number)

    def kill(*_: Any) -> None:
        if worker is not None:
            signal_group(worker.pid, signal.SIGKILL)

    # Before anything is started: a signal that ended this process would leave it running.
    signal.signal(signal.SIGALRM, kill)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, hear)
    command = [sys.executable, "-m", "nightsweep.jobs.rank.worker", str(run_folder.path)]
    env, workdir = dict(os.environ), None
    if own_script:
        try:
            script.first_sign(run_folder, rank)
            prepared = script.prepare(run_folder, point, rank)
        except (ConfigError, OSError) as error:
            return refuse(run_folder, rank, error)
        command, env, workdir = prepared.command, prepared.environment, prepared.workdir
    if under_nsys:
        command = nsys.profile_command(run_folder, rank, point, gpu_metrics=order.gpu_metrics) + command
    first = local_rank == "0"
    samplers = Started(run_folder, order) if first else None  # before the rank, whose control holds them still
    kills = out_of_memory_kills()
    env[nsys.OWNER_VARIABLE] = owner
    if given := os.environ.get(gpus.OF_RANKS_VARIABLE):
        env["CUDA_VISIBLE_DEVICES"] = given
    began = clock.now_ns()
    try:
        with run_folder.rank_file(rank, "log").open("ab") as log:
            if own_script or under_nsys:
                worker = subprocess.Popen(
                    command,
                    env=env,
                    cwd=workdir,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            else:
                worker = start.start("nightsweep.jobs.rank.worker", [str(run_folder.path)], env, log)
    except OSError as error:
        if samplers is not None:
            samplers.end()
        return refuse(run_folder, rank, error)
    for earlier in received:
        hand_on(earlier)
    write_json(run_folder.rank_file(rank, "pid.json"), RankProcess(rank=rank, host=host, pid=worker.pid))
    if first:
        write_json(run_folder.host(host), facts.host())
    code = worker.wait()
    ended = clock.now_ns()
    signal.alarm(0)
    if (code or own_script) and not was_stopped(received):
        time.sleep(STOP_SKEW_S)
    stopped = was_stopped(received)
    signal_group(worker.pid, signal.SIGKILL)  # loader workers, or what nsys left
    if under_nsys and (code or received):
        nsys.end(owner)
    if code > 128 and under_nsys:  # as a shell says it
        code = 128 - code
    if own_script:
        script.conclude(run_folder, rank, code, Window(start_ns=began, end_ns=ended), stopped=stopped)
    write_json(
        run_folder.rank_file(rank, "exit.json"),
        RankExit(
            rank=rank,
            host=host,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            out_of_memory=code == -signal.SIGKILL and out_of_memory_kills() > kills,
            stopped=stopped,
            ended_ns=ended,
        ),
    )
    if samplers is not None:
        samplers.end()
    return 0 if code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
