"""What the executor is told of jobs of the rule `point` (`submitit-hook` in profiles/slurm).

The output of such a job is a record, the last of those of the points that it measures; lost points get theirs from the
driver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

from msgspec import structs
from snakemake_executor_plugin_submitit.hook import Hook, Loss, LossReason, Verdict

from nightsweep.jobs.record import lost, untraced
from nightsweep.jobs.record.failures import Reason
from nightsweep.jobs.record.json_files import read_json, write_json
from nightsweep.jobs.record.phases import last_attempt, starts_of
from nightsweep.jobs.record.point_folder import count_attempts
from nightsweep.jobs.record.raw_files import MEASURED, measured_record, publish
from nightsweep.jobs.record.record import Record
from nightsweep.jobs.sweep import rounds


def leader_of(job: Any) -> Path | None:
    """Path of the record that this job writes; None for a job of another rule."""
    if job.is_group() or not job.output:
        return None
    path = Path(str(job.output[0]))  # not the rule's name: a workflow that uses this one as a module may give another
    return path if path.match("points/*/record.json") else None


def block_of(job: Any, leader: Path) -> list[Path]:
    """Paths of the records of all points that the job measures, the leader's first. A rule of another workflow names no
    others in its params."""
    folders = map(Path, getattr(job.params, "folders", ()))
    return [leader, *(folder / "record.json" for folder in folders if folder != leader.parent)]


def begun_by(job_id: str | None, block: list[Path]) -> set[Path]:
    """Those of a block whose last attempt is of this job of the scheduler. Not by their times: jobs that followed each
    other ran on nodes whose clocks may differ."""
    return {path for path in block if [start.slurm_id for start in starts_of(path.parent)[-1:]] == [job_id]}


def unended(block: list[Path], begun: set[Path]) -> list[Path]:
    """Those of a block without a result. `begun`: those that its job began, of which the first one, the leader, may
    have a record that its job's end explains better."""

    def lacks(path: Path) -> bool:
        record = read_json(path, Record)
        return record is None or (path == block[0] and path in begun and may_be_of_loss(record))

    return [path for path in block if measured_record(path.parent) is None and lacks(path)]


def may_be_of_loss(record: Record) -> bool:
    """Whether the point may have failed of what ended its job."""
    return record.status != "ok" and record.reason in lost.DOUBTFUL | lost.AGAIN


def loss_record(path: Path, loss: Loss, losses: int, job_id: str | None) -> Record:
    """The record of a point whose job was lost. `losses`: how many jobs before it were."""
    own = rounds.job_of(path.parents[2], path.parent.name)
    attempt = max(count_attempts(path.parent), losses + 1)
    record = lost.lost_record(own, cast(Reason, loss.reason), loss.message, attempt, job_id)
    return structs.replace(record, phases=last_attempt(path.parent))


def record_of(job: Any) -> tuple[Path, Record | None] | None:
    """The record that a job of points is judged by: the leader's, and where it is there and ok, the first that is not;
    with its path. None for a job of another rule."""
    leader = leader_of(job)
    if leader is None:
        return None
    if (record := read_json(leader, Record)) is None or record.status != "ok":
        return leader, record
    others = ((path, read_json(path, Record)) for path in block_of(job, leader))
    return next(((path, one) for path, one in others if one is not None and one.status != "ok"), (leader, record))


class PointJobs(Hook):
    """The jobs of points."""

    places: ClassVar[Mapping[str, str]] = {
        "nodes": "`nodes` of the sweep",
        "tasks_per_node": "`ranks_per_node` of the sweep",
        "gpus_per_node": "`ranks_per_node` of the sweep, or its `device` to cpu where no node has a GPU",
        "runtime": "`resources: timeout_min` of the sweep",
        "mem_mb": "`default-resources: mem_mb_per_gpu` in the profile",
        "cpus_per_task": "`default-resources: cpus_per_task` in the profile",
    }
    parts = "points"

    def verdict(self, job: Any) -> Verdict:
        """What the record says; a reason that another node would not give is a loss."""
        found = record_of(job)
        if found is None:
            return None
        record = found[1]
        if record is None:
            return "missing"
        if record.reason in lost.AGAIN:
            return Loss(cast(LossReason, record.reason), record.message or "", again=True)
        return "doubtful" if record.reason in lost.DOUBTFUL else "ok" if record.status == "ok" else "failed"

    def has_begun(self, job: Any, job_id: str | None = None) -> bool:
        """Whether the launcher had started its ranks; with an id, of any point in that job of the scheduler."""
        if job_id is not None:
            leader = leader_of(job)
            return leader is not None and bool(begun_by(job_id, block_of(job, leader)))
        found = record_of(job)
        return found is not None and count_attempts(found[0].parent) > 0

    def count_rest(self, job: Any) -> int:
        """How many points of a job that has ended have no record."""
        leader = leader_of(job)
        return 0 if leader is None else sum(not path.exists() for path in block_of(job, leader))

    def take_back(self, job: Any, lost_id: str | None) -> None:
        """Put the leader's record where the job that brings it back finds it, and remove those of points that may have
        failed of what ended this lost job."""
        if (leader := leader_of(job)) is None:
            return
        block = block_of(job, leader)
        begun = begun_by(lost_id, block)
        if read_json(leader, Record) is not None and measured_record(leader.parent) is None:
            leader.replace(leader.with_name(MEASURED))  # takes no room on a disk that may be full
        leader.unlink(missing_ok=True)
        for path in block if lost_id else []:
            for file in (path, path.with_name(MEASURED)):
                record = read_json(file, Record)
                if record is None or (may_be_of_loss(record) and (path in begun or record.reason in lost.AGAIN)):
                    file.unlink(missing_ok=True)

    def record_begun(self, job: Any, loss: Loss, losses: int, job_id: str | None) -> int:
        """Memory or time that one point has used up says nothing of those that the job had not come to; nor does a
        point that has taken a second launcher with it, whatever became of the first job that had begun it."""
        leader = leader_of(job)
        if leader is None or loss.reason not in ("time_limit", "host_out_of_memory", "lost"):
            return 0
        block = block_of(job, leader)
        begun = begun_by(job_id, block)
        lacking = unended(block, begun)
        rest = [path for path in lacking if path not in begun]
        ended = begun.intersection(lacking)
        # The same job may have begun a point twice.
        jobs = [{start.slurm_id for start in starts_of(path.parent)} for path in ended]
        seconds = bool(jobs) and all(len(ids) > 1 for ids in jobs)
        if not begun or not rest or (loss.reason == "lost" and not seconds):
            return 0
        for path in ended:
            if untraced.put_back(path.parent) is None:
                record = loss_record(path, loss, losses, job_id)
                write_json(path.with_name(MEASURED) if path == leader else path, record)
        return len(rest)

    def record_loss(self, job: Any, loss: Loss, losses: int, job_id: str | None) -> bool:
        """Write the records of the points of a lost job, the leader's last; those that it had measured, or that had
        failed by themselves, have theirs, and one that lacks its trace alone is accepted so. Where it had used up
        memory or time, those that it had not come to are `lost`, which `nightsweep retry` sets aside."""
        leader = leader_of(job)
        if leader is None or loss.reason == "failed":
            return False
        block = block_of(job, leader)
        for path in block:
            untraced.put_back(path.parent)
        begun = begun_by(job_id, block)
        lacking = unended(block, begun)
        not_begun = Loss("lost", f"the job had not come to this point: {loss.reason}: {loss.message}")
        for path in reversed(block):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path in lacking:
                own = not_begun if begun and path not in begun and loss.reason not in lost.SET_ASIDE else loss
                publish(path.parent, loss_record(path, own, losses, job_id))
            elif record := measured_record(path.parent):
                publish(path.parent, record)
        return True
