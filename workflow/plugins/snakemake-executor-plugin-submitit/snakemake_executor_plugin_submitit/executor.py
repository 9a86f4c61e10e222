"""The executor: takes all jobs that are ready, has them submitted (submission.py), watches them with one query, brings
them home.

A job's end is seen by the file that submitit leaves in the batch step; the scheduler is asked every `poll_s` at most,
for all jobs at once, and tells about those that can leave nothing: node failures, preemption, cancelled jobs.
"""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.utils import encode_target_jobs_cli_args

from snakemake_executor_plugin_submitit import efficiency, hook, job_end, partitions, refusal, request, signals, waiting
from snakemake_executor_plugin_submitit.hook import Loss
from snakemake_executor_plugin_submitit.job_end import Track
from snakemake_executor_plugin_submitit.journal import Entry, Journal, NotPrivate
from snakemake_executor_plugin_submitit.local import Local
from snakemake_executor_plugin_submitit.query import Unreachable
from snakemake_executor_plugin_submitit.refusal import Refused
from snakemake_executor_plugin_submitit.scheduler import Slurm, State, forget_allocation
from snakemake_executor_plugin_submitit.submission import Submission

ROOT = Path(".snakemake/submitit")
TICK_S = 2
FIRST_QUERY_S = 5.0
FEW = 3
"""The run stops once this many jobs could not start their command and none could."""
TOLD = {"progress": True}
"""Marks a line for the screen that is no warning."""


def key_of(job: Any) -> str:
    """What tells a job from the others, in any run."""
    return "\n".join(sorted(map(str, job.output)) or encode_target_jobs_cli_args(job.get_target_spec()))


class Executor(RemoteExecutor):  # type: ignore[misc]
    """Jobs in, job ends out; see the module's text."""

    def __post_init__(self) -> None:
        forget_allocation()
        self.options = self.workflow.executor_settings
        try:
            self.hook = hook.load(self.options.hook)
            self.backend: Slurm | Local = Local() if self.options.cluster == "local" else Slurm(self.logger.warning)
            partitions.check(self.dag.needrun_jobs(), self.options)
            report = self.options.efficiency_report
            self.efficiency = efficiency.Report(report, self.backend.accounting, self.logger.warning)
            self.journal = Journal(ROOT, self.backend.cluster)
            self.earlier = self._earlier()
        except (ValueError, Refused, Unreachable, NotPrivate) as error:
            raise WorkflowError(str(error)) from None
        self.submission = Submission(self.backend, self.journal, self.options, self.hook.places, self._tell)
        # Snakemake's own list of active jobs is empty while they are being checked, so it cannot say what to cancel
        self.open: dict[str, SubmittedJobInfo] = {}
        self.passed = False
        self.waiting = waiting.Waiting()
        self.interval = FIRST_QUERY_S
        self.next_query = 0.0
        self.next_seconds_between_status_checks = TICK_S
        self.outage = self.disk = ""

    def _earlier(self) -> dict[str, Entry]:
        """Jobs of earlier drivers on this cluster. Raises NotPrivate, and ValueError where one that is wanted now may
        run on another cluster: its number here is that of another job."""
        found, here = self.journal.load_unfinished(), ("", self.backend.cluster)
        wanted = {key_of(job) for job in self.dag.needrun_jobs()}
        for key, entry in found.items():
            if entry.cluster not in (*here, "local") and key in wanted and not entry.is_written():
                raise ValueError(
                    f"{entry.folder}: is of jobs on cluster {entry.cluster}, and this is {self.backend.cluster}; "
                    "run this there until it ends"
                )
        return {key: entry for key, entry in found.items() if entry.cluster in here}

    # ---- out ------------------------------------------------------------------------------------------------------

    def run_jobs(self, jobs: list[Any]) -> None:
        signals.heed()
        infos = []
        for job in sorted(jobs, key=lambda job: job.priority, reverse=True):  # Slurm takes them in the order of arrays
            self.run_job_pre(job)
            info = self._prepare(job)
            self.open[info.aux["track"].key] = info
            infos.append(info)
        adopted = [info.external_jobid or "?" for info in infos if self._adopt(info)]
        if adopted:
            go = "goes" if len(adopted) == 1 else "go"
            self._tell(f"{waiting.count(len(adopted))} of an earlier run {go} on: {waiting.arrays(adopted)}")
        self._send(infos)
        for info in infos:
            self.report_job_submission(info)
        self._stop_where_nothing_passes()

    def run_job(self, job: Any) -> None:
        self.run_jobs([job])

    def get_job_exec_prefix(self, job: Any) -> str:
        return f"cd {shlex.quote(str(Path.cwd()))}"

    def _tell(self, line: str) -> None:
        self.logger.info(line, extra=TOLD)

    def _prepare(self, job: Any) -> SubmittedJobInfo:
        asked = request.from_job(job.resources, job.threads, self.options)
        track = Track(key_of(job), asked, self.format_job_exec(job), tuple(Path(str(log)) for log in job.log))
        try:
            track.request = partitions.place(asked, self.options, job.name)
        except partitions.NoFit as error:  # of a job that was not known when the run began
            track.refused = str(error)
        return SubmittedJobInfo(job, external_jobid=None, aux={"track": track})

    def _adopt(self, info: SubmittedJobInfo) -> bool:
        """Take over a job that an earlier driver submitted; False where none came of it, or someone wants it again."""
        track = info.aux["track"]
        entry = self.earlier.pop(track.key, None)
        if entry is None or self.options.cluster == "local":
            return False
        if job_end.is_wanted_again(entry, map(Path, info.job.input)):
            return False
        track.folder, track.name, track.place = entry.folder, entry.name, (entry.index, entry.size)
        track.losses = entry.losses
        info.external_jobid = entry.job_id
        return True

    def _send(self, infos: list[SubmittedJobInfo]) -> None:
        try:
            if self.submission.send(infos, any(info.external_jobid for info in list(self.open.values()))):
                self.interval = FIRST_QUERY_S
                self.next_query = time.monotonic() + self.interval
            self.disk = ""
        except Unreachable as error:
            self._report_outage(str(error))
        except OSError as error:
            self._report_disk(error)
        self.efficiency.add(infos)

    def _stop_where_nothing_passes(self) -> None:
        """End the run where the scheduler takes none of its jobs, or none can start its command: the same reason would
        otherwise become the result of every job."""
        tracks = [info.aux["track"] for info in list(self.open.values())]  # the other thread may add some
        refused = [track for track in tracks if track.refused]
        unstarted = sum(track.name != "" for track in refused)
        if self.submission.stopping or self.passed or not refused or (len(refused) < len(tracks) and unstarted < FEW):
            return
        sent = [info for info in list(self.open.values()) if info.external_jobid and not info.aux["track"].refused]
        if any(self.hook.has_begun(info.job, info.external_jobid) for info in sent):
            self.passed = True
            return
        reasons = list(dict.fromkeys(f"  {track.refused}" for track in refused))[:FEW]
        title = f"none of {waiting.count(len(tracks))} can run, so the run ends here:"
        self._cancel_all()
        self.workflow.scheduler.executor_error_callback(WorkflowError("\n".join([title, *reasons])))

    # ---- home -----------------------------------------------------------------------------------------------------

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncGenerator[SubmittedJobInfo, None]:
        signals.wake_main_thread()
        if not active_jobs:
            return  # Snakemake begins to ask before this object is made
        states = self._query(active_jobs)  # may last until after cancel_jobs, whose doing is no end of a job
        finished = job_end.list_finished({i.aux["track"].folder for i in active_jobs if i.aux["track"].name})
        for info in active_jobs:
            track, job_id = info.aux["track"], info.external_jobid
            if job_end.is_open(track, job_id, finished, states):
                yield info
                continue
            code = job_end.exit_code(track.folder, job_id) if job_id in finished else None
            end = job_end.judge_end(track, job_id, code, self.hook, info.job, states)
            if end is None or self._is_kept(info, end):
                yield info
            else:
                self._note_end(track)
                self.open.pop(track.key, None)
                self.submission.note_end()
                self._report(info, end)
        self._stop_where_nothing_passes()

    def _is_kept(self, info: SubmittedJobInfo, end: Loss | bool) -> bool:
        """Whether a job goes on in spite of its end: it is sent again, or the same end may await all jobs."""
        track = info.aux["track"]
        if isinstance(end, Loss) and self.submission.stopping:
            return True
        if isinstance(end, Loss) and end.reason == "launch_failed":
            track.refused = end.message
            return not self.passed
        self.passed = True
        return self._sends_again(info, end) if isinstance(end, Loss) else self._sends_rest(info)

    def _query(self, infos: list[SubmittedJobInfo]) -> dict[str, State] | None:
        """States of all jobs when it is time to ask, else None; also sends what is yet to be sent."""
        if time.monotonic() < self.next_query:
            return None
        self.interval = min(self.interval * 1.5, self.options.poll_s)
        self.next_query = time.monotonic() + self.interval
        if not self.submission.stopping:
            self._send(infos)
        ids = [info.external_jobid for info in infos if info.external_jobid]
        try:
            states = self.backend.states(ids) if ids else {}
            if not self.submission.stopping:
                self._look_at_queue(infos, states)
        except Unreachable as error:
            self._report_outage(str(error))
            return None
        if self.outage:
            self.logger.warning("the scheduler answers again")
            self.outage = ""
        return states

    def _note_end(self, track: Track) -> None:
        """Without a note, where the disk is full, the next driver finds the end again."""
        try:
            self.journal.end(track.key, track.name)
        except OSError as error:
            self._report_disk(error)

    def _report_disk(self, error: OSError) -> None:
        if not self.disk:
            self.logger.warning(f"jobs cannot be sent, which is tried again; those that are go on: {error}")
        self.disk = str(error)

    def _report_outage(self, text: str) -> None:
        if not self.outage:
            self.logger.warning(f"the scheduler does not answer; jobs go on, and so does the watch: {text}")
        self.outage = text

    def _look_at_queue(self, infos: list[SubmittedJobInfo], states: dict[str, State]) -> None:
        """Say what jobs wait for, and give up on those that would wait for ever."""
        known = [(i, states[i.external_jobid]) for i in infos if i.external_jobid in states]
        pending = [(i, state) for i, state in known if state.name == "PENDING"]
        never = [(i, state.why) for i, state in pending if self._never_passes(i.aux["track"], state.why)]
        given_up = {info.external_jobid for info, _ in never}
        for line in self.waiting.lines(state.why for i, state in pending if i.external_jobid not in given_up):
            self._tell(line)
        if never:
            self.backend.cancel([info.external_jobid for info, _ in never], [])
        for info, why in never:
            self._note_end(info.aux["track"])
            info.external_jobid, info.aux["track"].name = None, ""
            info.aux["track"].refused = refusal.advised(f"Slurm would let it wait for ever: {why}", self.hook.places)

    def _never_passes(self, track: Track, why: str) -> bool:
        """Whether a job waits for ever. Slurm may also say PartitionNodeLimit where nodes are down, for now."""
        asked = track.request
        return refusal.never_passes(why) and (
            not why.startswith("PartitionNodeLimit") or asked.nodes > self.backend.most_nodes(asked.partition)
        )

    def _sends_again(self, info: SubmittedJobInfo, loss: Loss) -> bool:
        """Make a lost job one that is yet to be sent, where that makes sense, away from nodes that are down. One that
        would be lost again, and at last one that may be, is sent for what it had not come to alone."""
        track, job_id = info.aux["track"], info.external_jobid
        if track.losses >= self.options.resubmissions:
            return False
        try:
            is_last = track.losses + 1 == self.options.resubmissions
            ends = is_last or not loss.again
            left = self.hook.record_begun(info.job, loss, track.losses, job_id) if ends else 0
            bad = self.backend.bad_nodes(track.nodes) if loss.reason == "node_failure" else []
            if loss.reason == "lost" and job_id:  # which the accounting alone may not know
                self.backend.cancel([job_id], [])
                self._note_end(track)
        except (Unreachable, OSError):  # a full disk
            left, bad = 0, []
        if (not loss.again and not left) or not self._send_anew(info, job_id if loss.again else None):
            return False
        rest = f" for the {left} of its {self.hook.parts} that it had not come to" if left else ""
        self.logger.warning(f"{job_id} is lost ({loss.reason}: {loss.message}); submitted again{rest}")
        track.losses += 1
        track.request = track.request.avoid(sorted({*bad, *loss.named_nodes()}))
        return True

    def _sends_rest(self, info: SubmittedJobInfo) -> bool:
        """Make a job one that is yet to be sent, where its time was over before it came to all of its work."""
        track, job_id, left = info.aux["track"], info.external_jobid, self.hook.count_rest(info.job)
        idle = not left or left == track.left  # no job does nothing twice
        if self.submission.stopping or idle or not self._send_anew(info, None):
            return False
        self._tell(f"{job_id} had no time left for {left} of its {self.hook.parts}; submitted again for them")
        track.left = left
        return True

    def _send_anew(self, info: SubmittedJobInfo, lost_id: str | None) -> bool:
        """Make a job that has ended one that is yet to be sent; False where a full disk does not let it."""
        track = info.aux["track"]
        try:
            self.hook.take_back(info.job, lost_id)
        except OSError as error:
            self.logger.error(f"{track.key}: {error.strerror}; not submitted again")
            return False
        info.external_jobid, track.missing_since, track.name, track.nodes = None, None, "", ""
        self.next_query = 0.0
        return True

    def _report(self, info: SubmittedJobInfo, end: Loss | bool) -> None:
        if not isinstance(end, Loss):
            self.report_job_success(info)
            return
        try:
            recorded = self.hook.record_loss(info.job, end, info.aux["track"].losses, info.external_jobid)
        except OSError as error:  # the disk is full: the job has no result, and the same command runs it again
            self.logger.error(f"{info.aux['track'].key}: {error.strerror}")
            recorded = False
        if recorded:
            self.report_job_success(info)
        else:
            self.report_job_error(info, msg=f"{end.reason}: {end.message}. ")

    def shutdown(self) -> None:
        """Jobs of earlier drivers that nobody asked for, their outputs being there, are no later driver's to look for:
        should someone remove one, that job is to be run again."""
        for entry in self.earlier.values():
            if entry.is_written():
                self.journal.end(entry.key, entry.name)
        super().shutdown()
        self.efficiency.write(0 if self.submission.stopping else efficiency.SETTLE_S)

    # ---- stop -----------------------------------------------------------------------------------------------------

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not end the cancelling
        self._cancel_all()

    def _cancel_all(self) -> None:
        if left := self.submission.cancel(self.open, self._report_outage):
            self.logger.error(f"could not cancel; when the scheduler answers: scancel {' '.join(left)}")
