"""One attempt at a point, look by look: ranks started (again where the start failed for reasons that pass), watched,
and told of in an entry for the record.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.launch import tenants, watchdog
from jobs.point import plan
from jobs.point.point import Point
from jobs.record.folder import Look, read_json
from jobs.slurm import allocation
from jobs.telemetry.samplers import OFF_VARIABLE
from jobs.telemetry.trace import nsys

RETRY_S = (5, 10, 20, 40, 60)
"""Pauses between starts of ranks while Slurm's controller is away."""

SKIPPED: dict[str, Any] = {
    "status": "skipped", "reason": None, "message": None, "started_ns": None, "ended_ns": None, "wall_s": 0.0,
    "failure": None,
}  # fmt: skip


def clear(folder: Path) -> None:
    """Take away the looks of earlier attempts: this one may skip some, and they would pass for its own."""
    for pattern in ("timed", "traced", "cost-*", "search*", "tenant-*"):
        for old in folder.glob(pattern):
            shutil.rmtree(old, ignore_errors=True)


def attempts(folder: Path) -> int:
    """How often the point was started."""
    log = folder / "attempts.jsonl"
    return len(log.read_text().splitlines()) if log.exists() else 0


@dataclass(frozen=True)
class Attempt:
    """A start of the point, and what its looks share. `environment`: variables for the ranks."""

    folder: Path
    number: int
    point: Point
    limits: watchdog.Limits
    stopped: Callable[[], bool]
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, kind: str, tracer: str, blocks: Sequence[plan.Block], *, samplers: bool = True) -> dict[str, Any]:
        """One look, from an empty folder; its entry in the record, with `failure` when it failed."""
        for earlier in self.folder.glob(f"{kind}.*"):
            shutil.rmtree(earlier, ignore_errors=True)
        look = Look(self.folder / f"{kind}.{self.number}")
        own = {
            "NIGHTSWEEP_TRACER": tracer,
            plan.VARIABLE: plan.dump(blocks),
            **({} if samplers else {OFF_VARIABLE: "1"}),
        }
        started = time.time_ns()
        outcome = self.ranks(look, {**self.environment, **own})
        if attempts(self.folder) <= self.number:  # else a later attempt has taken over this point
            look = look.settle()
        if outcome.reason is None and tracer == "nsys" and kind == "traced":
            ranks = [r for r in range(self.point.processes) if self.point.traces(r)]
            problem = nsys.export(look, ranks, keep_report=self.point.keep_report)
            if problem:
                outcome = watchdog.Outcome("rank_exit", problem, None)
        ended = time.time_ns()
        return {
            "status": "failed" if outcome.reason else "ok",
            "reason": outcome.reason,
            "message": outcome.message,
            "started_ns": started,
            "ended_ns": ended,
            "wall_s": (ended - started) / 1e9,
            "failure": outcome.failure,
        }

    def ranks(self, look: Look, environment: dict[str, str]) -> watchdog.Outcome:
        """The ranks of a look, started again a few times where the start failed for reasons that pass."""
        for pause in (*RETRY_S, None):
            shutil.rmtree(look.folder, ignore_errors=True)
            look.folder.mkdir(parents=True)
            try:
                limits = bounded(self.limits)
                with tenants.beside(look, self.point, limits, environment, self.stopped) as more:
                    outcome = watchdog.Ranks(look, self.point, limits, environment | more).watch(self.stopped)
            except tenants.TenantError as error:
                return error.outcome
            except OSError as error:
                return watchdog.Outcome("launch_failed", str(error), None)
            if pause is None or not passing(outcome, look):
                break
            time.sleep(pause)
        return outcome


def bounded(limits: watchdog.Limits) -> watchdog.Limits:
    """These limits, and in an allocation its end: Slurm would leave no time to write a record."""
    left = allocation.seconds_left() if allocation.inside() else None
    if left is None:
        return limits
    return watchdog.Limits(limits.stall_s, min(limits.timeout_s, max(left - allocation.MARGIN_S, left / 2)))


def passing(outcome: watchdog.Outcome, look: Look) -> bool:
    """Whether the ranks never got under way: another process took their port, or Slurm's controller was away."""
    if outcome.reason == "launch_failed":
        return allocation.controller_was_away(look.log)
    return "EADDRINUSE" in (outcome.message or "")


def tracebacks(look: Look, failed: int | None) -> dict[str, str | None]:
    """Paths, relative to the point, of what rank 0 and the rank that failed first left: a traceback, else stacks."""

    def path(rank: int | None) -> str | None:
        if rank is None:
            return None
        for name in ("traceback.txt", "stacks.txt"):
            file = look.rank_file(rank, name)
            if file.exists() and file.stat().st_size:
                return f"{look.kind}/{file.name}"
        return None

    return {"first_failed": path(failed), "rank0": path(0)}


def failure_of(folder: Path, looks: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """The record's failure: of the timed look, else of the traced one, else of the control."""
    for kind, entry in looks.items():
        if entry["status"] == "failed":
            who = entry["failure"] or dict.fromkeys(("rank", "host", "exit_code", "signal", "phase", "step"))
            return {
                "look": kind,
                **who,
                "tracebacks": tracebacks(Look(folder / entry.get("folder", kind)), who["rank"]),
            }
    return None


def told(folder: Path, pattern: str) -> list[Any]:
    """What JSON files of the looks hold, by name."""
    return [content for path in sorted(folder.glob(pattern)) if (content := read_json(path)) is not None]
