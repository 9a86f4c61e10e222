"""One point: ranks up, watched, down; timed, then traced, then the control where one is asked for; the record last.

    python -m jobs.launch.launch results/demo/points/<id> --sweep results/demo/sweep.json [--stall-s 300]

Ends with 0 when a record was written, whatever the record says: a failed point is a result, and the sweep goes on.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import os
import shlex
import shutil
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.host import facts, gpus
from jobs.launch import batch_search, control, watchdog
from jobs.launch.attempt import SKIPPED, Attempt, attempts, clear, failure_of, told
from jobs.point import plan
from jobs.point.point import Point, complete
from jobs.record import json_lines
from jobs.record.folder import RECORD_SCHEMA, Look, read_json, utc_now, write_json
from jobs.slurm import allocation
from jobs.sweep.alert import ALERT_VARIABLE, Alert
from jobs.telemetry.trace import nsys

MEASURED = ".measured.json"
"""A copy of an ok record. A driver that is killed just as a point ends takes the record for half-written and deletes
it; this copy puts it back, so that a measured point is never measured again."""
MOST_EVENTS = 200


def next_attempt(folder: Path) -> int:
    """Number this start, and note it before anything else happens."""
    number = attempts(folder) + 1
    with (folder / "attempts.jsonl").open("a") as sink:
        entry = {"attempt": number, "started_at": utc_now(), "host": socket.gethostname(), "pid": os.getpid()}
        sink.write(json.dumps(entry) + "\n")
    return number


@dataclass(frozen=True)
class Choice:
    """Which tracer the traced look uses (None: there is no such look), and why."""

    tracer: str | None
    why: str
    version: str | None = None
    no_gpu_metrics: str | None = None


def choose_tracer(point: Point, cuda: bool) -> Choice:
    """nsys where it works and there is something for it to see."""
    if point.traced_steps == 0:
        return Choice(None, "the point asks for no trace")
    if point.tracer == "kineto":
        return Choice("kineto", "the point asks for it")
    if not cuda:
        return Choice("kineto", "ranks compute on the CPU, where nsys would see no kernels")
    found = nsys.probe(point.trace_preset)
    if not found.works:
        return Choice("kineto", found.text)
    why = f"{found.text}; no GPU metrics: {found.no_gpu_metrics}" if found.no_gpu_metrics else found.text
    return Choice("nsys", why, found.text, found.no_gpu_metrics)


def traced_look(attempt: Attempt, choice: Choice) -> tuple[dict[str, Any], Choice]:
    """The traced look. Where it fails under nsys, although the same ranks ran well without, Kineto gets a turn."""
    if choice.tracer is None:
        return SKIPPED, choice
    blocks = plan.traced(attempt.point)
    entry = attempt.run("traced", choice.tracer, blocks)
    if choice.tracer != "nsys" or entry["status"] == "ok" or entry["reason"] == "interrupted":
        return entry, choice
    choice = Choice("kineto", f"under nsys: {entry['message']}", choice.version)
    return attempt.run("traced", "kineto", blocks), choice


def hosts(look: Look) -> list[dict[str, Any]]:
    """What the nodes of the ranks are, as their supervisors noted it; this host where none came so far."""
    return told(look.folder, look.host("*").name) or [facts.host()]


def events(folder: Path) -> list[dict[str, Any]]:
    """What the samplers saw happen to GPUs, in order of time; the first ones where there are very many."""
    found = []
    for kind in ("timed", "traced"):
        for path in (folder / kind).glob("events-*.jsonl"):
            found += [{"look": kind, **event} for event in json_lines.read(path)]
    return sorted(found, key=lambda event: event["t_ns"])[:MOST_EVENTS]


def uses_cuda(point: Point) -> bool:
    if point.device == "cpu":
        return False  # torch takes seconds to load
    import torch

    return torch.cuda.is_available()


def run_looks(attempt: Attempt) -> tuple[dict[str, dict[str, Any]], Choice]:
    """Entries of all looks; one that has no ground to stand on is skipped."""
    point = attempt.point
    if point.nodes > 1 and not allocation.inside():
        message = f"the point asks for {point.nodes} nodes and this is not inside a Slurm allocation"
        timed = SKIPPED | {"status": "failed", "reason": "launch_failed", "message": message}
    else:
        failed = batch_search.run(attempt) if point.batch_search else None
        timed = failed or attempt.run("timed", "none", plan.timed(point))
    looks = {"timed": timed, "traced": SKIPPED, "control": SKIPPED}
    choice = Choice(None, "the timed look did not end well")
    if timed["status"] == "ok":
        choice = choose_tracer(point, uses_cuda(point))
        if choice.no_gpu_metrics:
            attempt.environment[nsys.NO_GPU_METRICS_VARIABLE] = "1"
        looks["traced"], choice = traced_look(attempt, choice)
    if timed["status"] == "ok" and looks["traced"]["reason"] != "interrupted" and point.cost_pairs:
        looks["control"] = control.run(attempt, choice.tracer if looks["traced"]["status"] == "ok" else None)
    return looks, choice


def launch(
    folder: Path, job: dict[str, Any], limits: watchdog.Limits, stopped: Any, alert: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Run the point and return its record."""
    point, number, started_at, begin = complete(job["settings"]), next_attempt(folder), utc_now(), time.monotonic()
    clear(folder)
    write_json(folder / "point.json", job)
    if point.device != "cpu":  # torch, which the record asks; imported while the ranks run, it holds nobody up
        threading.Thread(target=importlib.import_module, args=("torch",), daemon=True).start()
    environment = {ALERT_VARIABLE: (Alert(**alert) if alert else Alert()).as_json()}
    looks, choice = run_looks(Attempt(folder, number, point, limits, stopped, environment))
    cuda = uses_cuda(point)
    timed, traced = looks["timed"], looks["traced"]
    status = "ok" if timed["status"] == "ok" else "cancelled" if timed["reason"] == "interrupted" else "failed"
    available, nvml_why = gpus.probe()
    return {
        "schema": RECORD_SCHEMA,
        "point_id": job["point_id"],
        "sweep": job["sweep"],
        "settings": point.settings(),
        "found": (read_json(folder / "point.json") or {}).get("found"),
        "status": status,
        "reason": timed["reason"],
        "message": timed["message"],
        "attempt": number,
        "command": shlex.join(sys.argv) + " -> " + watchdog.describe(Look(folder / "timed"), point),
        "started_at": started_at,
        "ended_at": utc_now(),
        "wall_s": time.monotonic() - begin,
        "failure": failure_of(folder, looks),
        "looks": {k: {n: v for n, v in e.items() if n not in ("failure", "folder")} for k, e in looks.items()},
        "tracer": {
            "used": choice.tracer if traced["status"] == "ok" else None,
            "reason": traced["message"] or choice.why,
        },
        "nvml": {"available": available, "reason": None if available else nvml_why},
        "events": events(folder),
        "device": "cuda" if cuda else "cpu",
        "backend": "nccl" if cuda else "gloo",
        "world_size": point.world_size,
        "hosts": hosts(Look(folder / "timed")),
        "software": facts.software(choice.version, cuda),
        "slurm": facts.slurm(),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="jobs.launch.launch", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sweep", type=Path, required=True, help="sweep.json, which holds the point of this folder")
    parser.add_argument("--stall-s", type=float, default=300.0)
    parser.add_argument("--timeout-s", type=float, default=3600.0)
    return parser.parse_args()


def main() -> int:
    args = parse()
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda n, _: signals.append(n))
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
            limits = watchdog.Limits(args.stall_s, args.timeout_s)
            record = launch(folder, job, limits, lambda: bool(signals), sweep.get("alert"))
            if record["status"] == "ok":
                write_json(folder / MEASURED, record)
                shutil.rmtree(folder / "checkpoint", ignore_errors=True)
        # where the lock does not reach every node, a later attempt may be under way: its word counts
        if record["status"] == "ok" or attempts(folder) <= record["attempt"]:
            write_json(folder / "record.json", record)
    print(f"{folder.name} {record['status']} {record['reason'] or ''} {record['message'] or ''}".strip())
    return 130 if record["status"] == "cancelled" else 0


if __name__ == "__main__":
    sys.exit(main())
