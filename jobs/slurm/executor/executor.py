"""The executor: takes all jobs that are ready, submits them as arrays, watches them with one query, brings them home.

A job's end is seen by the file that submitit leaves in the batch step; the scheduler is asked every `poll_s` at most,
for all jobs at once, and tells about those that can leave nothing: node failures, preemption, cancelled jobs.
"""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

from jobs.record.lost import Loss
from jobs.slurm.executor import job_end, point_job, request
from jobs.slurm.executor.job_end import Track
from jobs.slurm.executor.journal import Entry, Journal
from jobs.slurm.executor.local import Local
from jobs.slurm.executor.request import Request
from jobs.slurm.executor.scheduler import Refused, Slurm, State, forget_allocation, masters
from jobs.slurm.query import Unreachable

ROOT = Path(".snakemake/submitit")
TICK_S = 2
FIRST_QUERY_S = 5.0


class Executor(RemoteExecutor):  # type: ignore[misc]
    """Jobs in, job ends out; see the module's text."""

    def __post_init__(self) -> None:
        forget_allocation()
        self.options = self.workflow.executor_settings
        self.backend: Slurm | Local = Local() if self.options.cluster == "local" else Slurm()
        self.journal = Journal(ROOT)
        self.earlier = self.journal.load_unfinished()
        self.submitting = threading.RLock()
        self.stopping = False
        # Snakemake's own list of active jobs is empty while they are being checked, so it cannot say what to cancel
        self.open: dict[str, SubmittedJobInfo] = {}
        self.arrays: dict[str, list[str] | None] = {}
        self.interval = FIRST_QUERY_S
        self.next_query = 0.0
        self.next_seconds_between_status_checks = TICK_S
        self.outage = ""

    # ---- out ------------------------------------------------------------------------------------------------------

    def run_jobs(self, jobs: list[Any]) -> None:
        self._heed_signals()
        groups: dict[Request, list[SubmittedJobInfo]] = {}
        for job in jobs:
            self.run_job_pre(job)
            info = self._prepare(job)
            self.open[info.aux["track"].key] = info
            entry = self.earlier.pop(info.aux["track"].key, None)
            if entry is not None and self._adopt(info, entry):
                self.report_job_submission(info)
            else:
                groups.setdefault(info.aux["track"].request, []).append(info)
        for infos in groups.values():
            self._submit(infos)
            for info in infos:
                self.report_job_submission(info)

    def run_job(self, job: Any) -> None:
        self.run_jobs([job])

    def _prepare(self, job: Any) -> SubmittedJobInfo:
        asked = request.from_job(job.resources, job.threads, self.options)
        key = "\n".join(sorted(map(str, job.output))) or f"job {job.jobid}"
        track = Track(key, asked, self.format_job_exec(job), self.journal.folder, "", (0, 1))
        return SubmittedJobInfo(job, external_jobid=None, aux={"track": track})

    def _adopt(self, info: SubmittedJobInfo, entry: Entry) -> bool:
        """Take over a job that an earlier driver submitted; False where none came of it, or someone wants it again."""
        if self.options.cluster == "local" or job_end.is_wanted_again(entry):
            return False
        track = info.aux["track"]
        track.folder, track.name, track.place = entry.folder, entry.name, (entry.index, entry.size)
        track.losses = entry.losses
        info.external_jobid = entry.job_id
        if entry.job_id is None:
            try:
                if not self._look_up(info):
                    return False
            except Unreachable as error:
                self._report_outage(str(error))  # looked for again when the scheduler answers
        self.logger.info(f"{info.external_jobid} of an earlier run goes on: {track.key}")
        return True

    def _look_up(self, info: SubmittedJobInfo) -> bool:
        """Look for a job whose submission was not answered by the name of its array; one query an array."""
        track = info.aux["track"]
        if track.name not in self.arrays:
            self.arrays[track.name] = self.backend.find(track.name, track.place[1])
        ids = self.arrays[track.name]
        if ids is not None:
            info.external_jobid = ids[track.place[0]]
        return ids is not None

    def _submit(self, infos: list[SubmittedJobInfo]) -> None:
        """Send jobs of one request, as arrays; those that cannot be sent now keep no id and are sent later."""
        size = min(self.options.array_size, self.backend.largest_array)
        for first in range(0, len(infos), size):
            with self.submitting:
                self._submit_array(infos[first : first + size])
        self.interval = FIRST_QUERY_S
        self.next_query = time.monotonic() + self.interval

    def _submit_array(self, infos: list[SubmittedJobInfo]) -> None:
        if self.stopping:
            return
        tracks = [info.aux["track"] for info in infos]
        name = f"nightsweep-{uuid.uuid4().hex[:8]}"
        self.journal.intend(name, [t.key for t in tracks], [t.losses for t in tracks])
        for place, track in enumerate(tracks):
            track.folder, track.name, track.place = self.journal.folder / name, name, (place, len(tracks))
        try:
            ids = self.backend.submit(
                self.journal.folder / name,
                name,
                tracks[0].request,
                [t.command for t in tracks],
                self.options.array_parallelism,
            )
        except Unreachable as error:
            self._report_outage(str(error))
            return
        except (Refused, ValueError) as error:
            self.journal.refuse(name)
            self.logger.error(f"the scheduler refuses {len(tracks)} jobs: {error}")
            for track in tracks:
                track.refused = str(error)
            return
        self.journal.accept(name, ids)
        for info, job_id in zip(infos, ids, strict=True):
            info.external_jobid = job_id

    def _submit_waiting(self, infos: list[SubmittedJobInfo]) -> None:
        """Send what an outage held back; first look whether the scheduler has it after all."""
        groups: dict[Request, list[SubmittedJobInfo]] = {}
        for info in infos:
            if not self._look_up(info):
                groups.setdefault(info.aux["track"].request, []).append(info)
        for group in groups.values():
            self._submit(group)

    # ---- home -----------------------------------------------------------------------------------------------------

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncGenerator[SubmittedJobInfo, None]:
        states = self._query(active_jobs)  # may last until after cancel_jobs, whose doing is no end of a point
        finished = job_end.list_finished({info.aux["track"].folder for info in active_jobs})
        for info in active_jobs:
            track, job_id = info.aux["track"], info.external_jobid
            code = job_end.exit_code(track.folder, job_id) if job_id in finished else None
            if states is not None and job_id in states:
                self._report_waiting(track, states[job_id])
            end = job_end.judge_end(track, job_id, code, point_job.record_of(info.job), states)
            if end is None or (isinstance(end, Loss) and (self.stopping or self._send_again(info, end))):
                yield info
            else:
                self.journal.end(track.key)
                self.open.pop(track.key, None)
                self._report(info, end)

    def _query(self, infos: list[SubmittedJobInfo]) -> dict[str, State] | None:
        """States of all jobs when it is time to ask, else None; also sends what an outage held back."""
        if not infos or time.monotonic() < self.next_query:
            return None
        try:
            unsent = [i for i in infos if i.external_jobid is None and not i.aux["track"].refused]
            if unsent and not self.stopping:
                self._submit_waiting(unsent)
            ids = [info.external_jobid for info in infos if info.external_jobid]
            states = self.backend.states(ids) if ids else {}
            if self.outage:
                self.logger.warning("the scheduler answers again")
                self.outage = ""
        except Unreachable as error:
            self._report_outage(str(error))
            states = None
        self.interval = min(self.interval * 1.5, self.options.poll_s)
        self.next_query = time.monotonic() + self.interval
        return states

    def _report_outage(self, text: str) -> None:
        if not self.outage:
            self.logger.warning(f"the scheduler does not answer; jobs go on, and so does the watch: {text}")
        self.outage = text

    def _report_waiting(self, track: Track, state: State) -> None:
        """Say once when a job waits for something that time alone may not bring."""
        usual = ("", "None", "Priority", "Resources", "JobArrayTaskLimit", "BeginTime", "Dependency")
        if state.name == "PENDING" and state.why not in usual and state.why != track.waits:
            track.waits = state.why
            self.logger.warning(f"{track.key.splitlines()[0]} waits in the queue: {state.why}")

    def _send_again(self, info: SubmittedJobInfo, loss: Loss) -> bool:
        """Submit a lost job again where that makes sense, away from nodes that are down."""
        track = info.aux["track"]
        if not loss.again or track.losses >= self.options.resubmissions:
            return False
        try:
            bad = self.backend.bad_nodes(track.nodes) if loss.reason == "node_failure" else []
        except Unreachable:
            bad = []
        self.logger.warning(f"{info.external_jobid} is lost ({loss.reason}: {loss.message}); submitted again")
        found = point_job.record_of(info.job)
        if found and found[1] is not None:
            found[0].unlink()
        track.losses += 1
        track.request = track.request.avoid(bad)
        info.external_jobid, track.missing_since, track.waits, track.nodes = None, None, "", ""
        self._submit([info])
        return True

    def _report(self, info: SubmittedJobInfo, end: Loss | bool) -> None:
        if end is True or (
            isinstance(end, Loss) and point_job.write_loss(info.job, end, info.aux["track"].losses, info.external_jobid)
        ):
            self.report_job_success(info)
        else:
            assert isinstance(end, Loss)
            self.report_job_error(info, msg=f"{end.reason}: {end.message}. ")

    def shutdown(self) -> None:
        """Jobs of earlier drivers that nobody asked for, their outputs being there, are no later driver's to look for:
        should someone remove a record, that point is to be run again."""
        for entry in self.earlier.values():
            if entry.is_written():
                self.journal.end(entry.key)
        super().shutdown()

    # ---- stop -----------------------------------------------------------------------------------------------------

    def _heed_signals(self) -> None:
        """SIGTERM ends a run as Ctrl-C does; Snakemake alone would wait for jobs that may take all night."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.default_int_handler)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel everything; keeps trying for a while when the scheduler does not answer."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.stopping = True
        with self.submitting:
            infos = list(self.open.values())
        ids = [info.external_jobid for info in infos if info.external_jobid]
        unanswered = {info.aux["track"].name for info in infos if not info.external_jobid} - {""}
        for _ in range(5):
            try:
                self.backend.cancel(ids, unanswered)
                break
            except Unreachable as error:
                self._report_outage(str(error))
                time.sleep(3)
        else:
            self.logger.error(f"could not cancel; when the scheduler answers: scancel {' '.join(masters(ids))}")
        for info in infos:
            self.journal.end(info.aux["track"].key)
