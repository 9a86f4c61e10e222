"""Other jobs on the same GPUs: as many more starts of the point's ranks as it has tenants, at work during a run.

They train on until they are ended, and leave nothing. With `mps` all of them, and the measured ranks, share the GPUs
through CUDA's Multi-Process Service, which runs kernels of several processes at the same time; without it the GPU takes
turns between processes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator

from msgspec import structs

from nightsweep.jobs.host import facts, gpus
from nightsweep.jobs.launch import watchdog
from nightsweep.jobs.point import plan
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.heartbeat import place
from nightsweep.jobs.sweep.order import Order

_CONTROL = "nvidia-cuda-mps-control"
_FOREVER = 10**9


class TenantError(Exception):
    """The other tenants did not get to work. `outcome`: why, as for a run that failed."""

    def __init__(self, outcome: watchdog.Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


@contextlib.contextmanager
def beside(
    run_folder: RunFolder, order: Order, limits: watchdog.Limits, stopped: Callable[[], bool]
) -> Iterator[dict[str, str]]:
    """The variables that the measured ranks need; all other tenants are past their warm-up by then. Raises
    TenantError where one fails on the way, or has failed by the end of the run, which it then shared for a part only.
    """
    point = order.point()
    with service(point) as variables, contextlib.ExitStack() as ends:
        own = structs.replace(order, tracer="none", samplers=False, blocks=[plan.Block("timed", _FOREVER)])
        others = []
        for number in range(1, point.tenants or 1):
            folder = run_folder.path.with_name(f"tenant-{number}.{run_folder.path.name}")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            ends.callback(shutil.rmtree, folder, ignore_errors=True)
            others.append(watchdog.Ranks(RunFolder(folder), own, limits, variables, None))
            ends.callback(others[-1].end)
        for ranks in others:
            settle_in(ranks, stopped)
        yield variables
        if not stopped():  # who ends the run may end the tenants too
            for ranks in others:
                check(ranks.ended(stopped))


def check(outcome: watchdog.Outcome | None) -> None:
    """Raise TenantError where a tenant ended so."""
    if outcome is not None and outcome.reason:
        raise TenantError(watchdog.Outcome(outcome.reason, f"another tenant: {outcome.message}", outcome.failure))


def settle_in(ranks: watchdog.Ranks, stopped: Callable[[], bool]) -> None:
    """Wait until all of a tenant's ranks are past their warm-up."""
    while not all(past_warm_up(ranks, rank) for rank in range(ranks.point.processes)):
        check(ranks.ended(stopped))
        check(ranks.trouble(stopped))
        time.sleep(watchdog.POLL_S)


def past_warm_up(ranks: watchdog.Ranks, rank: int) -> bool:
    kind, _, number = place(ranks.run_folder, rank).partition(" ")
    return kind == "step" and int(number) >= ranks.point.warmup_steps


@contextlib.contextmanager
def service(point: Point) -> Iterator[dict[str, str]]:
    """A Multi-Process Service of this point's own, where it asks for one; the variables that lead to it.

    The service counts the GPUs that it is given from 0, so that an index would name one GPU to it and another to a
    rank: both are given UUIDs (NVIDIA's Multi-Process Service guide, on CUDA_VISIBLE_DEVICES)."""
    if not point.mps:
        yield {}
        return
    if shutil.which(_CONTROL) is None:
        raise TenantError(watchdog.Outcome("unsupported_here", f"mps: there is no {_CONTROL} on the PATH"))
    with tempfile.TemporaryDirectory(prefix="nightsweep-mps-") as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        env = {**os.environ, **variables}
        if gpus.are_named_by_index() and (uuids := ",".join(row[1] for row in facts.visible_gpus())):
            env["CUDA_VISIBLE_DEVICES"] = variables[gpus.OF_RANKS_VARIABLE] = uuids
        started = subprocess.run([_CONTROL, "-d"], env=env, capture_output=True, text=True)
        if started.returncode:
            why = (started.stderr or started.stdout).strip() or f"code {started.returncode}"
            raise TenantError(watchdog.Outcome("unsupported_here", f"mps: {_CONTROL} does not start: {why}"))
        try:
            yield variables
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run([_CONTROL], input="quit\n", env=env, capture_output=True, text=True, timeout=30)
