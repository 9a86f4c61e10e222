"""One attempt at a point, run by run: ranks are started (again where the start failed for reasons that pass) and
watched; each run ends as an entry for the record.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from nightsweep.jobs.host import clock
from nightsweep.jobs.host.terminal import last_line
from nightsweep.jobs.launch import tenants, watchdog
from nightsweep.jobs.launch.held import Held
from nightsweep.jobs.launch.starts import Servers
from nightsweep.jobs.point import plan
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.rank import script
from nightsweep.jobs.record import phases
from nightsweep.jobs.record.failures import is_disk_full
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.phases import Phase
from nightsweep.jobs.record.point_folder import count_attempts, results_of
from nightsweep.jobs.record.record import Failure, Run, RunName, Tracebacks
from nightsweep.jobs.slurm import allocation
from nightsweep.jobs.sweep import code
from nightsweep.jobs.sweep.alert import Alert
from nightsweep.jobs.sweep.order import Order, TracerName
from nightsweep.jobs.telemetry.trace import nsys

RETRY_S = (5, 10, 20, 40, 60)
"""Pauses between starts of ranks while Slurm's controller is away."""

SLURM_SAYS = re.compile(r"(\[\S+\] )?(srun|slurmstepd\S*):")


@dataclass(frozen=True)
class RunEnd:
    """How a run ended: its entry in the record, and the rank to blame where it failed."""

    run: Run
    failure: Failure | None = None
    traced: RunEnd | None = None
    """Of a timed run whose start went on to traced steps: the end of the traced run."""

    def of_forks(self) -> RunEnd:
        """The same of a start whose ranks were forked."""
        traced = self.traced and self.traced.of_forks()
        return replace(self, run=msgspec.structs.replace(self.run, forked=True), traced=traced)


SKIPPED = RunEnd(Run())
ENDED_BEFORE = "the script ended before its traced steps"
TAKEN_OVER = watchdog.Outcome("interrupted", "a later attempt at the point has begun")


@dataclass(frozen=True)
class Launcher:
    """What the points of one launcher's process share. `stopped`: whether it has been asked to stop; `files`: of
    scripts, with a hash of each when the sweep was read."""

    limits: watchdog.Limits
    stopped: Callable[[], bool]
    servers: Servers
    alert: Alert = field(default_factory=Alert)
    held: Held = field(default_factory=Held)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Attempt:
    """A start of the point, and what its runs share. `phases`: those of the launch so far; `gpu_metrics`: whether nsys
    can sample them."""

    folder: Path
    number: int
    point: Point
    launcher: Launcher
    phases: list[Phase] = field(default_factory=list)
    gpu_metrics: bool = True

    def run(self, kind: str, tracer: TracerName, blocks: Sequence[plan.Block], *, samplers: bool = True) -> RunEnd:
        """One start, from an empty folder. `kind`: name of its folder: timed, traced, cost-* or search."""
        if self.is_taken_over():
            return RunEnd(entry(TAKEN_OVER, (clock.now_ns(), clock.now_ns())))
        # Also what an earlier start of this kind was renamed to: on a network file system a node may find it by its
        # first name, with that start's order, until it is gone.
        for earlier in [*self.folder.glob(f"{kind}.*"), self.folder / kind, *self.folder.glob("traced.*")]:
            shutil.rmtree(earlier, ignore_errors=True)
        run_folder = RunFolder(self.folder / f"{kind}.{self.number}")
        order = Order(
            settings=self.point.settings(),
            tracer=tracer,
            traced_ranks=[] if tracer == "none" else self.point.traced_ranks(),
            blocks=list(blocks),
            samplers=samplers,
            gpu_metrics=self.gpu_metrics,
            stall_s=self.launcher.limits.stall_s,
            alert=self.launcher.alert,
        )
        started = clock.now_ns()
        outcome = self.ranks(run_folder, order)
        over = exported = clock.now_ns()
        runs = [own for own, _ in order.runs(run_folder) if own.path.exists()]
        if self.is_taken_over():
            for own in runs:
                shutil.rmtree(own.path, ignore_errors=True)
            return RunEnd(entry(TAKEN_OVER, (started, over)))
        settled = [own.settle() for own in runs]
        run_folder = settled[0]
        for own in settled:  # all ranks have ended: one that ends first must not delete what others still write
            for name in ("checkpoint", script.OUT):
                shutil.rmtree(own.path / name, ignore_errors=True)
        script.drop_whole_runs(run_folder)
        if outcome.reason is None and tracer == "nsys" and kind == "traced":
            problem = nsys.export(run_folder, order.traced_ranks, keep_report=self.point.keep_report)
            exported = clock.now_ns()
            if problem:
                outcome = watchdog.Outcome("rank_exit", problem)
        phases.append_start(self.phases, run_folder, started, over, exported, outcome.reason)
        span = started, clock.now_ns()
        if len(order.runs(run_folder)) > 1:
            found = self.both_ends(run_folder, outcome, span)
        else:
            found = RunEnd(entry(outcome, span), failure_from(run_folder, outcome) if outcome.reason else None)
        if not found.run.reason and (why := script.why_given_up(run_folder)):  # the point goes on without that rank
            found = replace(found, run=msgspec.structs.replace(found.run, message=why))
        return found.of_forks() if self.launcher.servers.fork and not watchdog.needs_new_python(order) else found

    def is_taken_over(self) -> bool:
        """Whether a later attempt at the point has begun, where the lock does not reach every node: what is in the
        point's folder from then on is its own."""
        return count_attempts(self.folder) > self.number

    def both_ends(self, run_folder: RunFolder, outcome: watchdog.Outcome, span: tuple[int, int]) -> RunEnd:
        """The end of a timed run whose start was to go on to traced steps. From when all ranks have written what was
        timed, a failure is the traced run's."""
        timed, traced = (results_of(self.folder, own.kind) for own in (run_folder, run_folder.traced))
        whole = [result for result in timed if not result.ended_early]
        # Another tenant may have failed at any time: nothing of such a start counts.
        if outcome.reason and (len(whole) < self.point.ranks or (self.point.tenants or 1) > 1):
            shutil.rmtree(run_folder.traced.path, ignore_errors=True)
            return RunEnd(entry(outcome, span), failure_from(run_folder, outcome))
        windows = [result.window.end_ns for result in timed if result.window]
        middle = min(max(windows, default=span[1]), span[1])
        run_timed = entry(watchdog.Outcome(), (span[0], middle))
        if not outcome.reason and len(traced) < len(timed):
            shutil.rmtree(run_folder.traced.path, ignore_errors=True)
            why = script.why_given_up(run_folder) or ENDED_BEFORE
            return RunEnd(run_timed, traced=RunEnd(Run(message=why)))
        run = msgspec.structs.replace(entry(outcome, (middle, span[1])), same_start=True)
        failure = failure_from(run_folder, outcome, "traced") if outcome.reason else None
        return RunEnd(run_timed, traced=RunEnd(run, failure))

    def ranks(self, run_folder: RunFolder, order: Order) -> watchdog.Outcome:
        """The ranks of a run, started again a few times where the start failed for reasons that pass."""
        launcher = self.launcher
        servers, stopped = launcher.servers, launcher.stopped
        for pause in (*RETRY_S, None):
            shutil.rmtree(run_folder.path, ignore_errors=True)
            run_folder.path.mkdir(parents=True)
            forks = servers.fork
            try:
                limits = bound_by_allocation(launcher.limits)
                if why := changed_code(self.point, launcher.files):
                    return watchdog.Outcome("launch_failed", why)
                if limits.timeout_s <= 0:  # Slurm is ending the job, and has not come to this process yet
                    return watchdog.Outcome("interrupted", "the job was stopped from outside")
                with tenants.beside(run_folder, order, limits, stopped) as variables:
                    outcome = watchdog.Ranks(run_folder, order, limits, variables, servers).watch(stopped)
            except tenants.TenantError as error:
                return error.outcome
            except OSError as error:
                return watchdog.Outcome("disk_full" if is_disk_full(error) else "launch_failed", str(error))
            if forks and not servers.fork and not stopped():
                print(f"ranks cannot be forked, so each starts a new Python: {last_words(run_folder)}", flush=True)
                continue
            if pause is None or not is_passing(outcome, run_folder):
                break
            time.sleep(pause)
        return outcome


def last_words(run_folder: RunFolder) -> str:
    """Why a node's server has ended, in a line. srun and slurmstepd then say that it has: theirs only where there is no
    other."""
    text = run_folder.read_log()
    own = [line for line in text.splitlines() if not SLURM_SAYS.match(line)]
    return last_line("\n".join(own)) or last_line(text)


def changed_code(point: Point, files: Mapping[str, str]) -> str | None:
    """Why a script is no longer that of its point, in one line; None where it is. `files`: of the sweep, with their
    hashes when it was read."""
    if point.workload != "command":
        return None
    try:
        found = code.read(point)
    except code.CodeError as error:
        return f"{error.setting}: {error}"
    if found.whole == point.code:
        return None
    return f"{code.name_changed(files, found.files) or 'the script, or a file of it,'} changed since the sweep was read"


def bound_by_allocation(limits: watchdog.Limits) -> watchdog.Limits:
    """These limits, and in an allocation its end: Slurm would leave no time to write a record."""
    if (left := allocation.seconds_left()) is None:
        return limits
    return watchdog.Limits(limits.stall_s, min(limits.timeout_s, max(left - allocation.MARGIN_S, left / 2)))


def has_no_time(limits: watchdog.Limits) -> bool:
    """Whether the Slurm job that this is in ends before a point has had half of the time that it may take."""
    left = allocation.seconds_left()
    return left is not None and left < limits.timeout_s / 2


PORT_TAKEN = re.compile("EADDRINUSE|Address already in use")
"""As PyTorch and Python say it."""


def is_passing(outcome: watchdog.Outcome, run_folder: RunFolder) -> bool:
    """Whether the ranks never got under way: another process took their port, or Slurm's controller was away."""
    if outcome.reason != "launch_failed":
        return PORT_TAKEN.search(outcome.message or "") is not None
    log = run_folder.read_log()  # where alone a launcher says that its port is in use
    return any(pattern.search(log) for pattern in (allocation.AWAY, PORT_TAKEN))


def entry(outcome: watchdog.Outcome, span: tuple[int, int]) -> Run:
    """The record's entry of a run that ended so. `span`: its start and end, ns."""
    return Run(
        status="failed" if outcome.reason else "ok",
        reason=outcome.reason,
        message=outcome.message,
        started_ns=span[0],
        ended_ns=span[1],
        wall_s=(span[1] - span[0]) / 1e9,
    )


def failure_from(run_folder: RunFolder, outcome: watchdog.Outcome, run: RunName | None = None) -> Failure:
    """The record's failure of a start that ended so. `run`: which of its runs failed, where it is not its folder's."""
    names: dict[str, RunName] = {"traced": "traced", "cost": "control"}
    blamed = outcome.failure or Failure()
    return msgspec.structs.replace(
        blamed,
        run=run or names.get(run_folder.kind.partition("-")[0], "timed"),
        tracebacks=Tracebacks(
            first_failed=traceback_path(run_folder, blamed.rank), rank0=traceback_path(run_folder, 0)
        ),
    )


def traceback_path(run_folder: RunFolder, rank: int | None) -> str | None:
    """Path, relative to the point, of what a rank left: a traceback, else stacks."""
    if rank is None:
        return None
    for name in ("traceback.txt", "stacks.txt"):
        file = run_folder.rank_file(rank, name)
        if file.exists() and file.stat().st_size:
            return f"{run_folder.kind}/{file.name}"
    return None
