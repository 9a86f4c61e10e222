"""Runs all ranks of one run: starts them, watches them, ends them, and says why they ended."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from nightsweep.jobs.host import gpus
from nightsweep.jobs.host.cores import allowed_cores
from nightsweep.jobs.host.terminal import last_line
from nightsweep.jobs.launch.starts import Forked, Fresh, Servers
from nightsweep.jobs.point.environment import environment
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.record.failures import Reason
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.heartbeat import place
from nightsweep.jobs.record.json_files import read_json
from nightsweep.jobs.record.launch_files import RankError, RankExit
from nightsweep.jobs.record.point_folder import by_rank
from nightsweep.jobs.record.record import Failure
from nightsweep.jobs.slurm import allocation
from nightsweep.jobs.sweep.order import Order

POLL_S = 0.2
GRACE_S = 10.0


@dataclass(frozen=True)
class Limits:
    """When to give up: no rank moved for `stall_s`, or the run took `timeout_s`."""

    stall_s: float
    timeout_s: float


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `failure` names the rank that failed first, if one did."""

    reason: Reason | None = None
    message: str | None = None
    failure: Failure | None = None


def hold_port() -> socket.socket:
    """A port of this host, which no other process is given while this socket is open. A rank can listen at it all the
    same: this one does not, and neither minds the other (SO_REUSEADDR)."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held


def master(point: Point, held: socket.socket) -> tuple[str, int]:
    """Address and port at which ranks meet: the held one where rank 0 runs on this host, else a guess by job."""
    port: int = held.getsockname()[1]
    if not (allocation.inside() and point.nodes > 1):
        return "127.0.0.1", port
    host = allocation.first_host()
    if host.split(".")[0] == socket.gethostname().split(".")[0]:
        return host, port
    return host, 20000 + zlib.crc32(f"{os.environ['SLURM_JOB_ID']}{time.time_ns()}".encode()) % 12000


def threads(point: Point) -> int:
    """CPU threads of a rank: what Slurm gave each task, else an even share of this host, which is that of the rank's
    GPUs among all of the host, so that it is the same on one GPU and on several."""
    given = os.environ.get("SLURM_CPUS_PER_TASK") if allocation.inside() else None
    if given:
        return int(given)
    boards = len(gpus.host_boards()) if point.device != "cpu" and gpus.probe()[0] else 0
    ranks = max(point.processes_per_node, boards * point.processes_per_node // point.ranks_per_node)
    return max(1, allowed_cores() // ranks)


def rank_environment(point: Point, held: socket.socket) -> dict[str, str]:
    """What every rank gets. CPU ranks share the cores, so that they do not fight for them."""
    address, port = master(point, held)
    shared = {**allocation.environment(), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
    if point.workload == "command":  # the rest is the script's own business, or its launcher's
        return shared | {"WORLD_SIZE": str(point.processes)}
    return {
        **shared,
        "WORLD_SIZE": str(point.processes),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads(point))),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        **environment(point),
    }


def commands(run_folder: RunFolder, point: Point, local: bool = False) -> list[tuple[list[str], dict[str, str]]]:
    """What to start, each with its own variables: one srun for all ranks in an allocation, else, or where they are to
    be `local` all the same, a process a rank. Where a script's launcher starts the ranks, one a node."""
    module = "nightsweep.jobs.rank.node_launcher" if point.has_node_launcher else "nightsweep.jobs.rank.supervisor"
    started = [*allocation.python(), "-m", module, str(run_folder.path)]
    if allocation.inside() and not local:
        return [(allocation.srun(point, started, 1 if point.has_node_launcher else point.processes_per_node), {})]
    number = 1 if point.has_node_launcher else point.processes
    return [(started, {"RANK": str(n), "LOCAL_RANK": str(n)}) for n in range(number)]


def describe(run_folder: RunFolder, point: Point) -> str:
    """The command that a person would run for the same ranks."""
    return " & ".join(
        " ".join([*(f"{k}={v}" for k, v in env.items()), shlex.join(cmd)]) for cmd, env in commands(run_folder, point)
    )


def signs_of_life(run_folder: RunFolder) -> list[int]:
    """What changes whenever a rank gives a sign of life: times of its files, by a clock that may be another host's, and
    may be set back. What a script prints is a sign, too: before its first step it may load and prepare for long."""
    files = [path for kind in ("heartbeat", "log") for path in sorted(run_folder.path.glob(f"rank*.{kind}"))]
    return [path.stat().st_mtime_ns for path in files]


def exits(run_folder: RunFolder, point: Point) -> list[RankExit]:
    """The ends of ranks so far, earliest first. The folder is listed: a network file system goes on to deny a file that
    was asked for before another node wrote it."""
    files = [path for rank, path in by_rank(run_folder.path, r"rank(\d+)\.exit\.json") if rank < point.processes]
    return sorted((end for path in files if (end := read_json(path, RankExit))), key=lambda end: end.ended_ns)


def bad(end: RankExit) -> bool:
    """Whether a rank did not come to its own end. A script that is asked to stop may save its work and end with 0."""
    return end.exit_code != 0 or end.stopped


# What a rank raises when it is a peer that died.
_COLLATERAL = re.compile(
    r"connection (reset|closed|refused)|broken pipe|remote (process|peer)|gloo.*(timed out|closed)|"
    r"nccl.*(remote|abort)",
    re.IGNORECASE,
)


def first_failure(run_folder: RunFolder, ends: list[RankExit]) -> RankExit:
    """The rank to blame: one that was killed, for its peers raise because of it; else the earliest that raised for
    itself; else the earliest. Time alone would not do: clocks of nodes differ by more than a lost connection takes."""

    def innocence(end: RankExit) -> tuple[bool, bool, int]:
        error = read_json(run_folder.rank_file(end.rank, "error.json"), RankError)
        collateral = error is not None and bool(_COLLATERAL.search(error.message))
        return end.signal != signal.SIGKILL, collateral, end.ended_ns

    return min((e for e in ends if bad(e)), key=innocence)


def blame(run_folder: RunFolder, end: RankExit, *, script: bool = False) -> Outcome:
    """The outcome for a rank that ended badly. `script`: it is somebody's own, whose last line may say why."""
    error = read_json(run_folder.rank_file(end.rank, "error.json"), RankError)
    phase = (error and error.phase) or place(run_folder, end.rank) or None
    failure = Failure(
        rank=end.rank,
        host=end.host,
        exit_code=end.exit_code,
        signal=end.signal,
        phase=phase,
        step=error.step if error else None,
    )
    where = f"in {phase}" if phase else "before its first sign of life"
    if end.signal:
        name = signal.Signals(end.signal).name
        message = f"rank {end.rank} died of signal {end.signal} ({name}) {where}"
        return Outcome("host_out_of_memory" if end.out_of_memory else "rank_killed", message, failure)
    if error:
        return Outcome(error.reason, f"rank {end.rank}: {error.message}", failure)
    message = f"rank {end.rank} ended with code {end.exit_code} {where}, without a traceback"
    said = last_line(run_folder.rank_file(end.rank, "log").read_text(errors="replace")) if script else ""
    if said:
        message += f"; its last line: {said}"
    return Outcome("rank_exit", message, failure)


def needs_new_python(order: Order) -> bool:
    """Whether a run's ranks cannot be forked: nsys and others' scripts begin with a program of their own."""
    return order.tracer == "nsys" or order.point().workload == "command"


class Ranks:
    """The started ranks of a run. `variables`: for their environment; `servers`: to fork them from; None: each is a new
    Python on this node, outside of Slurm's steps."""

    def __init__(
        self, run_folder: RunFolder, order: Order, limits: Limits, variables: dict[str, str], servers: Servers | None
    ) -> None:
        self.run_folder, self.point, self.limits = run_folder, order.point(), limits
        order.write(run_folder)
        self.port = hold_port()
        environment = {**rank_environment(self.point, self.port), **variables}
        self.processes: Fresh | Forked
        if servers is None or not servers.fork or needs_new_python(order):
            if servers is not None and allocation.inside():
                servers.close()  # Slurm has no CPUs for another step beside theirs
            self.processes = Fresh(run_folder, commands(run_folder, self.point, servers is None), environment)
        else:
            self.processes = servers.begin(run_folder, self.point, environment)
        self.started = self.moved = time.monotonic()
        self.signs: list[int] = []

    def end(self) -> None:
        """Ask the ranks for their stacks, then end them. Scripts write theirs by themselves (jobs/hook/install.py)."""
        if self.point.workload != "command":
            self.processes.send(signal.SIGUSR1)
            time.sleep(0.5)
        self.processes.send(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while self.processes.alive() and time.monotonic() < deadline:
            self.processes.pause(POLL_S)
        self.processes.send(signal.SIGKILL)
        self.processes.wait()

    def ended(self, stopped: Callable[[], bool]) -> Outcome | None:
        """The outcome where all ranks have ended, one has failed or was stopped by somebody who stops the job, or they
        are gone without a word. One look decides all of it: between two, a rank may fail."""
        gone = not self.processes.alive()  # asked first: they write their ends before they go
        ends = exits(self.run_folder, self.point)
        if not any(map(bad, ends)):
            if len(ends) == self.point.processes:
                return Outcome()
            if not gone:
                return None
        time.sleep(POLL_S)  # a rank that failed in the same moment may have been first, or the job be stopped
        ends = exits(self.run_folder, self.point)
        # A launcher on the node stops the other ranks when one has failed.
        failed = [end for end in ends if bad(end) and not end.stopped] if self.point.has_node_launcher else []
        if stopped() or (any(end.stopped for end in ends) and not failed) or allocation.is_ending():
            return Outcome("interrupted", "the job was stopped from outside")
        if any(map(bad, ends)):
            return blame(
                self.run_folder, first_failure(self.run_folder, failed or ends), script=self.point.workload == "command"
            )
        if len(ends) == self.point.processes:
            return Outcome()
        said = last_line(self.run_folder.read_log())
        return Outcome("launch_failed", f"ranks ended without saying how; the last line of their log: {said}")

    def watch(self, stopped: Callable[[], bool]) -> Outcome:
        """Until all ranks have ended well, or something is wrong. However it ends, none of them runs on."""
        outcome = None
        try:
            while not (outcome := self.ended(stopped) or self.trouble(stopped)):
                self.processes.pause(POLL_S)
        finally:
            if outcome is None or outcome.reason:
                self.end()
            else:
                self.processes.wait()
            self.port.close()
        if not outcome.reason:
            return outcome
        blamed = allocation.blame(self.run_folder.read_log())
        return Outcome(*blamed, outcome.failure) if blamed else outcome

    def places(self) -> str:
        """Where ranks stand, by their last sign of life: those that stand alike together, the fewest first."""
        found: dict[str, list[int]] = {}
        for rank in range(self.point.processes):
            found.setdefault(place(self.run_folder, rank) or "no sign of life", []).append(rank)
        groups = sorted(found.items(), key=lambda item: len(item[1]))
        return "; ".join(f"{where}: rank {', '.join(map(str, ranks[:8]))}" for where, ranks in groups)

    def unseen(self) -> str:
        """What to do about a script of which no step was found."""
        places = {place(self.run_folder, rank) for rank in range(self.point.processes)}
        if self.point.workload != "command" or not places <= {"", "start", "data", "steps"}:
            return ""
        return "; no step was found in the script: `nightsweep.step()` in it, once a step, marks them"

    def trouble(self, stopped: Callable[[], bool]) -> Outcome | None:
        """Stopped, too long, or stalled; None where all is well."""
        now = time.monotonic()
        if stopped():
            return Outcome("interrupted", "the launcher was asked to stop")
        if now - self.started > self.limits.timeout_s:
            return Outcome("time_limit", f"still running after {self.limits.timeout_s:.0f} s{self.unseen()}")
        if (signs := signs_of_life(self.run_folder)) != self.signs:
            self.signs, self.moved = signs, now
        if now - self.moved > self.limits.stall_s:
            return Outcome("stalled", f"no rank moved for {self.limits.stall_s:.0f} s: {self.places()}")
        return None
