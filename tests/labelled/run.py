"""Runs the labelled set on the GPUs of one host, without a scheduler: one run at a time on a GPU, while the next one
starts as far as it can (ahead.py); each has its share of the cores.

    python -m tests.labelled.run OUT [--names a,b] [--gpus 4] [--seconds 420] [--limit-s 180]

Every run is a point of OUT/points/<name>, as the launcher leaves it, with label.json. A run that has a remedy, or asks
for it, is timed without a profiler too; a remedied point is OUT/points/<name>.remedied. Other runs have the traced run
alone. One that fails says so and the others go on; none is begun when the seconds are over. What OUT has already is not
run again, so that a set may take several calls. Ends with 1 where one failed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from nightsweep.jobs.host.facts import ROOT
from nightsweep.jobs.launch import launch, watchdog
from nightsweep.jobs.launch.attempt import SKIPPED, Attempt, Launcher, RunEnd
from nightsweep.jobs.launch.starts import Servers
from nightsweep.jobs.launch.tracer_choice import choose_tracer
from nightsweep.jobs.point import plan
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.record.json_files import read_json, write_json
from nightsweep.jobs.record.launch_files import Job as PointJob
from nightsweep.jobs.record.record import Record, RunName
from nightsweep.jobs.record.record import Run as RankRun
from nightsweep.jobs.telemetry.trace import nsys
from tests.labelled import ahead
from tests.labelled.runs import RUNS, Run, load

SITE = Path(__file__).with_name("site")
POLL_S = 0.2
IN_FLIGHT = 2
"""Runs of a GPU: the one that is measured and the one that starts."""


@dataclass(frozen=True)
class Job:
    """A run, or its remedied point."""

    run: Run
    point: Point
    name: str
    timed: bool

    @property
    def traced(self) -> bool:
        return self.point.traced_steps > 0


def jobs_of(runs: list[Run]) -> list[Job]:
    """All that is to be done, the remedied points last: without them a run is still a run. Within each, what needs
    most GPUs first, so that none of them waits for a gap at the end."""
    own = [Job(run, run.point, run.name, run.is_timed) for run in runs]
    fixed = [Job(run, run.remedied, f"{run.name}.remedied", True) for run in runs if run.remedied is not None]
    return [job for group in (own, fixed) for job in sorted(group, key=lambda job: -job.point.world_size)]


def runs_of(job: Job, attempt: Attempt) -> launch.Measurement:
    """In place of the launcher's own runs. There is no second try under Kineto: a run without nsys is none."""
    ends: dict[RunName, RunEnd] = {"timed": SKIPPED, "traced": SKIPPED, "control": SKIPPED}
    # Of all labelled runs, whatever their points ask for, so that they keep their ids.
    point = dataclasses.replace(job.point, tracer="nsys")
    choice = choose_tracer(point, launch.uses_cuda(point))
    attempt = dataclasses.replace(attempt, gpu_metrics=choice.no_gpu_metrics is None)
    if job.timed:
        ends["timed"] = attempt.run("timed", "none", plan.timed_blocks(point))
    if job.traced and ends["timed"].run.status != "failed":
        ends["traced"] = attempt.run("traced", choice.tracer or "none", plan.traced_blocks(point))
    return launch.Measurement(ends, choice)


def measure(job: Job, folder: Path, gpus: list[int], cores: set[int], limit_s: float) -> None:
    """In a process of its own: the environment, then the launcher."""
    go = folder / ".go"
    os.environ |= {**job.run.variables(), ahead.GO_VARIABLE: str(go.absolute())}
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.sched_setaffinity(0, cores)
    launch.run_all = functools.partial(runs_of, job)
    point = PointJob(sweep="labelled", point_id=job.point.id, settings=job.point.settings())
    with ahead.turn(folder.parent, gpus, go) as turn, beside(job.run.neighbour, turn):
        export = nsys.export

        def after_the_turn(*args: Any, **options: Any) -> str | None:
            turn.end()
            return export(*args, **options)

        nsys.export = after_the_turn
        launcher = Launcher(watchdog.Limits(limit_s, limit_s), lambda: False, Servers(fork=False))
        record = launch.launch(folder, point, launcher)
    failed = [run for _, run in record.runs.named() if run.status == "failed"]
    first, status = (failed[0], "failed") if failed else (RankRun(), "ok")
    record = structs.replace(record, status=status, reason=first.reason, message=first.message)
    write_json(folder / "record.json", record)


@contextlib.contextmanager
def beside(neighbour: str | None, turn: ahead.Turn) -> Iterator[None]:
    """The run's neighbour, at work from the run's turn on. RuntimeError where it does not get so far."""
    if neighbour is None:
        yield
        return
    turn.come.wait()
    command = [sys.executable, "-m", "tests.labelled.neighbours", neighbour]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the neighbour {neighbour} ended with {process.wait()} before it was at work")
        yield
    finally:
        process.kill()
        process.wait()


def step_ms(folder: Path, phase: str) -> list[float]:
    """Of each step of a look, what the slowest rank took from its start to the next one's; the last step has none."""
    look = {"timed": "timed", "traced": "traced"}[phase]
    spans: list[list[float]] = []
    for path in sorted((folder / look).glob("steps-r*.jsonl")):
        rows = [row for line in path.read_text().splitlines() if (row := json.loads(line))["phase"] == phase]
        starts = [row["start_ns"] for row in rows]
        spans.append([(after - start) / 1e6 for start, after in itertools.pairwise(starts)])
    return max(spans, key=sum, default=[])


def told(job: Job, folder: Path, wall_s: float) -> str:
    """The line of a run that has ended."""
    record = read_json(folder / "record.json", Record)
    if record is None or record.status != "ok":
        why = f"{record.reason}: {record.message}" if record else "its process ended without a record"
        return f"FAILED {job.name} ({wall_s:.0f} s) {why}"[:300]
    times = {phase: step_ms(folder, phase) for phase in ("timed", "traced")}
    steps = ", ".join(f"{phase} {statistics.median(ms):.2f} ms" for phase, ms in times.items() if ms)
    sizes = [path.stat().st_size / 1e6 for path in (folder / "traced").glob("trace-r*.sqlite")]
    traces = f", {len(sizes)} traces of {max(sizes):.1f} MB" if sizes else ""
    return f"ok {job.name} ({wall_s:.0f} s) {steps}{traces}; {', '.join(job.run.kinds) or 'healthy'}"


@dataclass
class Running:
    """A run in flight. `slots`: (GPU, place) of each of its GPUs."""

    job: Job
    folder: Path
    slots: list[tuple[int, int]]
    process: Any
    started: float


class Host:
    """GPUs with IN_FLIGHT places each, and the cores that belong to each place."""

    def __init__(self, gpus: int) -> None:
        self.free = [list(range(IN_FLIGHT)) for _ in range(gpus)]
        self.cores = sorted(os.sched_getaffinity(0))
        self.share = max(1, len(self.cores) // (gpus * IN_FLIGHT))

    def take(self, count: int) -> list[tuple[int, int]] | None:
        """A place on so many GPUs, those with most free places; None where there are not so many."""
        gpus = sorted(range(len(self.free)), key=lambda gpu: (-len(self.free[gpu]), gpu))[:count]
        if len(gpus) < count or not all(self.free[gpu] for gpu in gpus):
            return None
        return [(gpu, self.free[gpu].pop()) for gpu in sorted(gpus)]

    def before(self, gpu: int) -> int:
        """How many of a GPU's places are taken by others than the run that took one last."""
        return IN_FLIGHT - 1 - len(self.free[gpu])

    def give_back(self, slots: list[tuple[int, int]]) -> None:
        for gpu, place in slots:
            self.free[gpu].append(place)

    def cores_of(self, slots: list[tuple[int, int]]) -> set[int]:
        firsts = [(gpu * IN_FLIGHT + place) * self.share for gpu, place in slots]
        return {core for first in firsts for core in self.cores[first : first + self.share]} or set(self.cores)


def begin(job: Job, slots: list[tuple[int, int]], host: Host, out: Path, limit_s: float) -> Running:
    folder = out / "points" / job.name
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "label.json", job.run.label())
    waits = limit_s * max(host.before(gpu) for gpu, _ in slots)  # for those that have their turn first
    args = (job, folder, [gpu for gpu, _ in slots], host.cores_of(slots), limit_s + waits)
    process = multiprocessing.get_context("fork").Process(target=measure, args=args)
    process.start()
    return Running(job, folder, slots, process, time.monotonic())


def run_all(waiting: list[Job], args: argparse.Namespace) -> int:
    """Those that failed or were never begun."""
    host, begun, bad = Host(args.gpus), time.monotonic(), 0
    running: list[Running] = []
    while running or (waiting and time.monotonic() - begun < args.seconds):
        if waiting and time.monotonic() - begun < args.seconds and (slots := host.take(waiting[0].point.world_size)):
            running.append(begin(waiting.pop(0), slots, host, args.out, args.limit_s))
            continue
        for one in [one for one in running if not one.process.is_alive()]:
            running.remove(one)
            host.give_back(one.slots)
            line = told(one.job, one.folder, time.monotonic() - one.started)
            bad += line.startswith("FAILED")
            print(f"[{time.monotonic() - begun:.0f} s] {line}", flush=True)
        time.sleep(POLL_S)
    for job in waiting:
        print(f"not begun: {job.name}")
    return bad + len(waiting)


def measured(folder: Path) -> bool:
    record = read_json(folder / "record.json", Record)
    return record is not None and record.status == "ok"


def main() -> int:
    args = parse()
    chosen = [run for run in load(args.runs) if not args.names or run.name in args.names.split(",")]
    nsys.probe = functools.cache(nsys.probe)
    nsys.probe("light")
    import torch  # noqa: F401  (as with the probe's answer, the processes that are forked have it then)

    fit = [job for job in jobs_of(chosen) if args.least_ranks <= job.point.world_size <= args.gpus]
    return 1 if run_all([job for job in fit if not measured(args.out / "points" / job.name)], args) else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.labelled.run", description="Run the labelled set on one host.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--names", help="these runs only, with commas between them")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--least-ranks", type=int, default=1, help="runs of so many ranks and more")
    parser.add_argument("--seconds", type=float, default=420.0, help="begin no run after so long")
    parser.add_argument("--limit-s", type=float, default=180.0, help="for each look of a run")
    parser.add_argument("--runs", type=Path, default=RUNS, help="another list of runs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
