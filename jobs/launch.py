"""One point: ranks up, watched, down; twice (timed, then traced); the record last.

    python -m jobs.launch results/demo/points/<id> --sweep results/demo/sweep.json [--stall-s 300] [--timeout-s 3600]

Ends with 0 when a record was written, whatever the record says: a failed point is a result, and the sweep goes on.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from jobs import allocation, facts, watch
from jobs.look import RECORD_SCHEMA, Kind, Look, read_json, utc_now, write_json
from jobs.point import Point, complete
from jobs.telemetry import nsys, nvml

RETRY_S = (5, 10, 20, 40, 60)
"""Pauses between starts of ranks while Slurm's controller is away."""
MEASURED = ".measured.json"
"""A copy of an ok record. A driver that is killed just as a point ends takes the record for half-written and deletes
it; this copy puts it back, so that a measured point is never measured again."""


def attempts(folder: Path) -> int:
    """How often the point was started."""
    log = folder / "attempts.jsonl"
    return len(log.read_text().splitlines()) if log.exists() else 0


def next_attempt(folder: Path) -> int:
    """Number this start, and note it before anything else happens."""
    number = attempts(folder) + 1
    with (folder / "attempts.jsonl").open("a") as sink:
        entry = {"attempt": number, "started_at": utc_now(), "host": socket.gethostname(), "pid": os.getpid()}
        sink.write(json.dumps(entry) + "\n")
    return number


def choose_tracer(point: Point, cuda: bool) -> tuple[str | None, str]:
    """Which tracer the traced look uses, and why."""
    if point.traced_steps == 0:
        return None, "the point asks for no trace"
    if point.tracer == "kineto":
        return "kineto", "the point asks for it"
    if not cuda:
        return "kineto", "ranks compute on the CPU, where nsys would see no kernels"
    works, why = nsys.probe()
    return ("nsys", why) if works else ("kineto", why)


def bounded(limits: watch.Limits) -> watch.Limits:
    """These limits, and in an allocation its end: Slurm would leave no time to write a record."""
    left = allocation.seconds_left() if allocation.inside() else None
    if left is None:
        return limits
    return watch.Limits(limits.stall_s, min(limits.timeout_s, max(left - allocation.MARGIN_S, left / 2)))


def run_ranks(look: Look, point: Point, tracer: str, limits: watch.Limits, stopped: Any) -> watch.Outcome:
    """The ranks of a look, started again a few times where the start failed for reasons that pass."""
    for pause in (*RETRY_S, None):
        shutil.rmtree(look.folder, ignore_errors=True)
        look.folder.mkdir(parents=True)
        try:
            outcome = watch.Ranks(look, point, tracer, bounded(limits)).watch(stopped)
        except OSError as error:
            return watch.Outcome("launch_failed", str(error), None)
        if pause is None or not passing(outcome, look):
            break
        time.sleep(pause)
    return outcome


def passing(outcome: watch.Outcome, look: Look) -> bool:
    """Whether the ranks never got under way: another process took their port, or Slurm's controller was away."""
    if outcome.reason == "launch_failed":
        return allocation.controller_was_away(look.log)
    return "EADDRINUSE" in (outcome.message or "")


def run_look(
    folder: Path, kind: Kind, attempt: int, point: Point, tracer: str, limits: watch.Limits, stopped: Any
) -> dict[str, Any]:
    """One look, from an empty folder; its entry in the record, with `failure` when it failed."""
    for earlier in folder.glob(f"{kind}.*"):
        shutil.rmtree(earlier, ignore_errors=True)
    look = Look(folder / f"{kind}.{attempt}")
    started = time.time_ns()
    outcome = run_ranks(look, point, tracer, limits, stopped)
    if attempts(folder) <= attempt:  # else a later attempt has taken over this point
        look = look.settle()
    if outcome.reason is None and tracer == "nsys":
        problems = [p for p in (nsys.export(look, r) for r in range(point.world_size)) if p]
        if problems:
            outcome = watch.Outcome("rank_exit", problems[0], None)
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
    """The record's failure: of the timed look, else of the traced one."""
    for kind, entry in looks.items():
        if entry["status"] == "failed":
            who = entry["failure"] or dict.fromkeys(("rank", "host", "exit_code", "signal", "phase", "step"))
            return {"look": kind, **who, "tracebacks": tracebacks(Look(folder / kind), who["rank"])}
    return None


SKIPPED: dict[str, Any] = {
    "status": "skipped", "reason": None, "message": None, "started_ns": None, "ended_ns": None, "wall_s": 0.0,
    "failure": None,
}  # fmt: skip


def hosts(look: Look) -> list[dict[str, Any]]:
    """What the nodes of the ranks are, as their supervisors noted it; this host where none came so far."""
    told = [read_json(path) for path in sorted(look.folder.glob(look.host("*").name))]
    return told or [facts.host()]


def uses_cuda(point: Point) -> bool:
    import torch

    return point.device != "cpu" and torch.cuda.is_available()


def launch(folder: Path, job: dict[str, Any], limits: watch.Limits, stopped: Any) -> dict[str, Any]:
    """Run the point and return its record."""
    point, attempt, started_at, begin = complete(job["settings"]), next_attempt(folder), utc_now(), time.monotonic()
    write_json(folder / "point.json", job)
    cuda = uses_cuda(point)
    tracer, why = choose_tracer(point, cuda)
    if point.nodes > 1 and not allocation.inside():
        message = f"the point asks for {point.nodes} nodes and this is not inside a Slurm allocation"
        timed = SKIPPED | {"status": "failed", "reason": "launch_failed", "message": message}
    else:
        timed = run_look(folder, "timed", attempt, point, "none", limits, stopped)
    traced = SKIPPED
    if timed["status"] == "ok" and tracer is not None:
        traced = run_look(folder, "traced", attempt, point, tracer, limits, stopped)
    looks = {"timed": timed, "traced": traced}
    failure = failure_of(folder, looks)
    status = "ok" if timed["status"] == "ok" else "cancelled" if timed["reason"] == "interrupted" else "failed"
    available, nvml_why = nvml.probe()
    return {
        "schema": RECORD_SCHEMA,
        "point_id": job["point_id"],
        "sweep": job["sweep"],
        "settings": point.settings(),
        "status": status,
        "reason": timed["reason"],
        "message": timed["message"],
        "attempt": attempt,
        "command": shlex.join(sys.argv) + " -> " + watch.describe(Look(folder / "timed"), point),
        "started_at": started_at,
        "ended_at": utc_now(),
        "wall_s": time.monotonic() - begin,
        "failure": failure,
        "looks": {kind: {k: v for k, v in entry.items() if k != "failure"} for kind, entry in looks.items()},
        "tracer": {"used": tracer if traced["status"] == "ok" else None, "reason": traced["message"] or why},
        "nvml": {"available": available, "reason": None if available else nvml_why},
        "device": "cuda" if cuda else "cpu",
        "backend": "nccl" if cuda else "gloo",
        "world_size": point.world_size,
        "hosts": hosts(Look(folder / "timed")),
        "software": facts.software(why if tracer == "nsys" else None),
        "slurm": facts.slurm(),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="jobs.launch", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sweep", type=Path, required=True, help="sweep.json, which holds the point of this folder")
    parser.add_argument("--stall-s", type=float, default=300.0)
    parser.add_argument("--timeout-s", type=float, default=3600.0)
    return parser.parse_args()


def main() -> int:
    args = parse()
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda n, _: told.append(n))
    folder: Path = args.folder
    sweep = read_json(args.sweep)
    mine = next((p for p in (sweep or {}).get("points", []) if p["point_id"] == folder.name), None)
    if mine is None:
        print(f"{args.sweep}: no point {folder.name} in it", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        # an orphan of a killed run may still be measuring this point: wait for it rather than disturb it
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = read_json(folder / MEASURED)
        if record is None:
            job = {"sweep": sweep["name"], **mine}
            record = launch(folder, job, watch.Limits(args.stall_s, args.timeout_s), lambda: bool(told))
            if record["status"] == "ok":
                write_json(folder / MEASURED, record)
        # where the lock does not reach every node, a later attempt may be under way: its word counts
        if record["status"] == "ok" or attempts(folder) <= record["attempt"]:
            write_json(folder / "record.json", record)
    print(f"{folder.name} {record['status']} {record['reason'] or ''} {record['message'] or ''}".strip())
    return 130 if record["status"] == "cancelled" else 0


if __name__ == "__main__":
    sys.exit(main())
