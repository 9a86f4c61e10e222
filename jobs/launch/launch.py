"""One point: ranks up, watched, down; timed and traced, then the control where one is asked for; the record last.

    python -m nightsweep.jobs.launch.launch results/demo/points/<id> ... --sweep results/demo/sweep.json [--stall-s 300]

Several points are those of a block or batch (jobs/sweep): one after the other, and the record of the first one last,
so that it stands for all. Ends with 0 when a record was written, whatever the record says: a failed point is a result,
and the sweep goes on. Ends with 130 and without a record where somebody stopped it.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from nightsweep.jobs.host import clock, facts, gpus
from nightsweep.jobs.host.cache import try_lock
from nightsweep.jobs.launch import batch_search, control, watchdog
from nightsweep.jobs.launch.attempt import SKIPPED, TAKEN_OVER, Attempt, Launcher, RunEnd, has_no_time
from nightsweep.jobs.launch.held import Held
from nightsweep.jobs.launch.starts import Servers
from nightsweep.jobs.launch.tracer_choice import Choice, choose_tracer
from nightsweep.jobs.point import plan
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.record import lost, untraced
from nightsweep.jobs.record.failures import is_disk_full
from nightsweep.jobs.record.folder import RunFolder, utc_now
from nightsweep.jobs.record.json_files import FormatError, load_json, read_json, write_json
from nightsweep.jobs.record.launch_files import WHOLE_RUN, Job
from nightsweep.jobs.record.phases import Phase, append
from nightsweep.jobs.record.point_folder import count_attempts, events_of, results_of
from nightsweep.jobs.record.raw_files import MEASURED, clear, measured_record, publish
from nightsweep.jobs.record.record import Failure, NvmlUse, Record, Run, RunName, Runs, SearchResult, Status, TracerUse
from nightsweep.jobs.slurm import allocation
from nightsweep.jobs.sweep.order import TracerName
from nightsweep.jobs.sweep.rounds import PointList


def run_traced(attempt: Attempt, choice: Choice) -> tuple[RunEnd, Choice]:
    """The traced run in a second start. Where it fails under nsys, although the same ranks ran well without, Kineto
    gets a turn."""
    if choice.tracer is None:
        return SKIPPED, choice
    blocks = plan.traced_blocks(attempt.point)
    ended = attempt.run("traced", choice.tracer, blocks)
    if choice.tracer != "nsys" or ended.run.status == "ok" or ended.run.reason == "interrupted":
        return ended, choice
    choice = Choice("kineto", f"under nsys: {ended.run.message}", choice.version)
    return attempt.run("traced", "kineto", blocks), choice


def hosts(run_folder: RunFolder) -> list[facts.Host]:
    """What the nodes of the ranks are, as their supervisors noted it; this host where none came so far."""
    files = sorted(run_folder.path.glob(run_folder.host("*").name))
    found = [host for file in files if (host := read_json(file, facts.Host)) is not None]
    return found or [facts.host()]


def uses_cuda(point: Point) -> bool:
    if point.device == "cpu":
        return False  # torch takes seconds to load
    import torch

    return torch.cuda.is_available()


@dataclass(frozen=True)
class Measurement:
    """What came of a point: how its runs ended, the tracer, and the micro_batch that a search found."""

    ends: Mapping[RunName, RunEnd]
    choice: Choice
    found: int | None = None

    @property
    def status(self) -> Status:
        """The point's: that of its timed run; where any run was stopped from outside, the point is to run again, for it
        would lack what it asks for."""
        if "interrupted" in {end.run.reason for end in self.ends.values()}:
            return "cancelled"
        return "ok" if self.runs.timed.status == "ok" else "failed"

    @property
    def runs(self) -> Runs:
        """Their entries of the record."""
        return Runs(**{name: end.run for name, end in self.ends.items()})


def run_all(attempt: Attempt) -> Measurement:
    """All runs; one that has no ground to stand on is skipped."""
    point, found = attempt.point, None
    ends: dict[RunName, RunEnd] = {"timed": SKIPPED, "traced": SKIPPED, "control": SKIPPED}
    choice = Choice(None, "the timed run did not end well")
    if point.nodes > 1 and not allocation.inside():
        message = f"the point asks for {point.nodes} nodes and this is not inside a Slurm allocation"
        failed = Run(status="failed", reason="launch_failed", message=message)
        return Measurement({**ends, "timed": RunEnd(failed, Failure(run="timed"))}, choice)
    if point.batch_search:
        try:
            found = batch_search.search(attempt)
        except batch_search.SearchError as error:
            return Measurement({**ends, "timed": error.ended}, choice)
        attempt = batch_search.with_size(attempt, found)
    tracer: TracerName = "kineto" if plan.is_one_start(point) else "none"
    ends["timed"] = attempt.run("timed", tracer, plan.timed_blocks(point))
    if ends["timed"].run.status != "ok":
        return Measurement(ends, choice, found)
    choice = choose_tracer(point, uses_cuda(point))
    if any(result.step_source == WHOLE_RUN for result in results_of(attempt.folder)):
        choice = Choice(None, "the script was timed as a whole, for want of steps: there is none to trace")
    elif ends["timed"].traced:
        ends["traced"] = ends["timed"].traced
    else:
        attempt = replace(attempt, gpu_metrics=choice.no_gpu_metrics is None)
        ends["traced"], choice = run_traced(attempt, choice)
    traced = ends["traced"].run
    if traced.reason != "interrupted" and point.cost_pairs:
        ends["control"] = control.run(attempt, choice.tracer if traced.status == "ok" else None)
    return Measurement(ends, choice, found)


def launch(folder: Path, job: Job, launcher: Launcher) -> Record:
    """Run the point and return its record."""
    point, started_at, begin = job.point(), utc_now(), time.monotonic()
    number, phases = launcher.held.begin(folder)
    clear(folder)
    write_json(folder / "point.json", job)
    if point.device != "cpu":  # torch, which the record asks; imported while the ranks run, it holds nobody up
        threading.Thread(target=importlib.import_module, args=("torch",), daemon=True).start()
    measured = run_all(Attempt(folder, number, point, launcher, phases))
    append(phases, Phase(phase="record", start_ns=clock.now_ns()))
    cuda, (available, nvml_why) = uses_cuda(point), gpus.probe()
    choice, runs = measured.choice, measured.runs
    return Record(
        point_id=job.point_id,
        sweep=job.sweep,
        settings=point.settings(),
        found=SearchResult(micro_batch=measured.found) if measured.found else None,
        status=measured.status,
        reason=runs.timed.reason,
        message=runs.timed.message,
        attempt=number,
        command=shlex.join(sys.argv) + " -> " + watchdog.describe(RunFolder(folder / "timed"), point),
        started_at=started_at,
        ended_at=utc_now(),
        wall_s=time.monotonic() - begin,
        failure=next((end.failure for end in measured.ends.values() if end.failure), None),
        runs=runs,
        tracer=TracerUse(
            used=choice.tracer if runs.traced.status == "ok" else None, reason=runs.traced.message or choice.why
        ),
        nvml=NvmlUse(available=available, reason=None if available else nvml_why),
        events=events_of(folder, runs),
        device="cuda" if cuda else "cpu",
        backend="nccl" if cuda else "gloo",
        world_size=point.world_size,
        hosts=hosts(RunFolder(folder / "timed")),
        software=facts.software(choice.version, cuda),
        slurm=facts.slurm(),
        phases=launcher.held.conclude(phases),
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="nightsweep.jobs.launch.launch", description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--sweep", type=Path, required=True, help="sweep.json, which holds the points of these folders")
    parser.add_argument("--stall-s", type=float, default=300.0)
    parser.add_argument("--timeout-s", type=float, default=3600.0)
    return parser.parse_args()


def main() -> int:
    args = parse()
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, lambda n, _: signals.append(n))
    clock.begin()
    held = Held.arrived()
    try:
        listed = load_json(args.sweep, PointList)
        block = [(folder, listed.job(folder.name)) for folder in args.folders]
    except (FormatError, LookupError) as error:
        print(f"{args.sweep}: {error}" if isinstance(error, LookupError) else error, file=sys.stderr)
        return 2
    limits = watchdog.Limits(args.stall_s, args.timeout_s)
    try:
        with Servers(fork=len(block) > 1) as servers:
            launcher = Launcher(limits, lambda: bool(signals), servers, listed.alert, held, listed.files)
            return measure_block(block, launcher)
    except OSError as error:
        if not is_disk_full(error):
            raise
        print(f"{block[0][0]}: {error.strerror}", file=sys.stderr)
        return 1


def measure_block(block: Sequence[tuple[Path, Job]], launcher: Launcher) -> int:
    """Measure points one after the other, and write the record of each as it ends, but the first one's last, which
    stands for all. Returns the exit status. What a Slurm job has no time left for gets no record, and so is run by
    another job."""
    first: Record | None = None
    for folder, job in block:
        if first is not None and has_no_time(launcher.limits) and result_of(folder, leads=False) is None:
            if is_over(launcher):  # a cancelled job has no time left, either
                return 130
            print(f"{folder.name} and what follows it are not run: the time of this job is over", flush=True)
            break
        record = measure(folder, job, launcher, leads=first is None)
        print(f"{folder.name} {record.status} {record.reason or ''} {record.message or ''}".strip(), flush=True)
        if record.status == "cancelled":
            return 130
        if first is not None:
            conclude(folder, record)
        first = first or record
    if first is not None:
        conclude(block[0][0], first)
    return 0


def measure(folder: Path, job: Job, launcher: Launcher, *, leads: bool) -> Record:
    """The point's record, measured now unless it is already. `leads`: its block."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "attempts.jsonl").open("a") as lock:
        # an orphan of a killed run may still be measuring this point: wait for it rather than disturb it
        while not try_lock(lock.fileno()):
            if launcher.stopped():
                return Record(status="cancelled", message="another launcher is measuring the point")
            time.sleep(watchdog.POLL_S)
        if (record := result_of(folder, leads)) is None:
            before = untraced.kept(folder)
            record = attempt_once(folder, job, launcher)
            # here rather than in another job, of which there are few: srun may complain about each point of this one
            again = record.status == "cancelled" and untraced.kept(folder) != before
            if again and not (is_over(launcher) or has_no_time(launcher.limits)):
                record = attempt_once(folder, job, launcher)
    return record


def attempt_once(folder: Path, job: Job, launcher: Launcher) -> Record:
    """The record of a new attempt at the point, or of the one that is kept for want of its trace where the new one
    fails. `cancelled`: the point is to be attempted again."""
    before = untraced.kept(folder)
    record = launch(folder, job, launcher)
    if count_attempts(folder) > (record.attempt or 0):
        return msgspec.structs.replace(record, status="cancelled", message=TAKEN_OVER.message)
    if untraced.lacks_trace(record) and (is_over(launcher) or not untraced.lasts(before, record)):
        untraced.keep(folder, record)
        return msgspec.structs.replace(record, status="cancelled")
    if before is not None and record.status != "ok":
        if record.reason is None or record.reason in lost.AGAIN | lost.DOUBTFUL:
            return msgspec.structs.replace(record, status="cancelled")
        record = untraced.put_back(folder) or record
    if record.status != "cancelled":
        write_json(folder / MEASURED, record)
        untraced.drop(folder)
    if record.status == "ok":
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    return record


def is_over(launcher: Launcher) -> bool:
    """Whether this launcher, or the Slurm job that it is in, has been asked to stop."""
    return launcher.stopped() or allocation.is_ending()


def result_of(folder: Path, leads: bool) -> Record | None:
    """The record of a point that is not to be run, or not again. Of one that leads a block, record.json is of an
    earlier job; of the others it may also be one that failed in an earlier job of the block."""
    return measured_record(folder) or (None if leads else read_json(folder / "record.json", Record))


def conclude(folder: Path, record: Record) -> None:
    """Publish the record. What was stopped is no result: without a record, the same command runs the point again."""
    # Where the lock does not reach every node, a later attempt may be under way: its word counts. It keeps what was ok.
    latest = record.status == "ok" or count_attempts(folder) <= (record.attempt or 0)
    if record.status != "cancelled" and latest:
        publish(folder, record)


if __name__ == "__main__":
    sys.exit(main())
