"""The way out: jobs become arrays, as large as the scheduler takes; the rest is kept until it takes more.

A job without an id and a name is yet to be sent: new, lost and to be started again, or kept back. One with a name alone
was sent when the scheduler did not answer.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from submitit.core.utils import JobPaths

from snakemake_executor_plugin_submitit import refusal, waiting
from snakemake_executor_plugin_submitit.journal import Journal
from snakemake_executor_plugin_submitit.local import Local
from snakemake_executor_plugin_submitit.query import Unreachable
from snakemake_executor_plugin_submitit.refusal import Refused, TooMany
from snakemake_executor_plugin_submitit.request import Request
from snakemake_executor_plugin_submitit.scheduler import Slurm, masters
from snakemake_executor_plugin_submitit.settings import ExecutorSettings


class Submission:
    """Sends jobs, by request. `places`: where resources are set (hook.py); `tell`: for a line on the screen."""

    def __init__(
        self,
        backend: Slurm | Local,
        journal: Journal,
        options: ExecutorSettings,
        places: Mapping[str, str],
        tell: Callable[[str], None],
    ) -> None:
        self.backend, self.journal, self.places, self.tell = backend, journal, places, tell
        self.parallel = options.array_parallelism
        self.largest = min(options.array_size, backend.largest_array)
        self.lock = threading.RLock()
        self.stopping = False
        self.kept = 0
        self.arrays: dict[str, list[str | None]] = {}
        """Ids of jobs whose submission was not answered, by their arrays' names; None for one without a command."""
        self.unanswered: set[str] = set()
        """Names of arrays that the scheduler did not know when it was asked, and may have taken later."""
        self.room: dict[Request, int] = {}
        """Of a request of which jobs are kept: how many have ended since the scheduler took no more."""

    def send(self, infos: list[SubmittedJobInfo], queued: bool) -> bool:
        """Submit those that are yet to be sent; whether any was. After an outage, look first whether the scheduler has
        them after all. `queued`: whether others of this run are in the queue. Raises Unreachable, and OSError where the
        disk is full."""
        if self.journal.stopped:
            self.backend.cancel([], self.journal.stopped)
            self.journal.cancelled(self.journal.stopped)
        kept: list[SubmittedJobInfo] = []
        groups: dict[Request, list[SubmittedJobInfo]] = {}
        for info in infos:
            track = info.aux["track"]
            if info.external_jobid is None and not track.refused and not (track.name and self._look_up(info)):
                groups.setdefault(track.request, []).append(info)
        try:
            for asked, group in groups.items():
                kept += self._submit(asked, group, queued)
        finally:
            sent = [info.external_jobid for group in groups.values() for info in group if info.external_jobid]
            if sent:
                self.tell(f"submitted {waiting.count(len(sent))}: {waiting.arrays(sent)}")
            if kept and not self.kept:
                self.tell(f"{waiting.count(len(kept))} are kept here until the scheduler takes more")
            self.kept = len(kept)
        return bool(sent)

    def note_end(self) -> None:
        """A job of the run has ended, and left room for another."""
        self.room = {asked: room + 1 for asked, room in self.room.items()}

    def cancel(self, open_jobs: Mapping[str, SubmittedJobInfo], report_outage: Callable[[str], None]) -> list[str]:
        """Send no more, and cancel what was sent. Keeps trying for a while when the scheduler does not answer; the
        arrays that it could not cancel."""
        self.stopping = True
        with self.lock:
            infos = list(open_jobs.values())
        names = {info.aux["track"].name for info in infos} | self.journal.stopped | self.unanswered
        unanswered = {info.aux["track"].name for info in infos if not info.external_jobid} | self.unanswered
        left = masters(info.external_jobid for info in infos if info.external_jobid)
        names.discard("")
        if not names:
            return []
        with contextlib.suppress(OSError):  # the disk is full
            self.journal.stop(names)
        for _ in range(5):
            try:
                self.backend.cancel(left, (unanswered | self.journal.stopped) - {""})
            except Unreachable as error:
                report_outage(str(error))
                time.sleep(3)
            else:
                with contextlib.suppress(OSError):
                    self.journal.cancelled(names)
                return []
        return left

    def _look_up(self, info: SubmittedJobInfo) -> bool:
        """Look for a job whose submission was not answered by the name of its array; one query an array.

        submitit names the file with a job's command by the number that sbatch answers: without an answer, or where the
        driver was killed on reading it, the job is there and has nothing to run. Such a one is cancelled.
        """
        track = info.aux["track"]
        if track.name not in self.arrays:
            sent = self.backend.find(track.name, track.place[1]) or []
            able = {i for i in sent if JobPaths(track.folder, i).submitted_pickle.exists()}
            if unable := [i for i in sent if i not in able]:
                self.backend.cancel(unable if able else masters(unable), [])
            if not sent:
                self.unanswered.add(track.name)
            self.arrays[track.name] = [i if i in able else None for i in sent]
        ids = self.arrays[track.name]
        info.external_jobid = ids[track.place[0]] if ids else None
        return info.external_jobid is not None

    def _submit(self, asked: Request, infos: list[SubmittedJobInfo], queued: bool) -> list[SubmittedJobInfo]:
        """Send jobs of one request as arrays; those for which there is no room. Raises Unreachable.

        Where the scheduler takes no more, the array is halved until it does. Later, as many are offered as jobs have
        ended since, and at least one: the limit may be shared with others.
        """
        size = max(1, min(self.room.get(asked, self.largest), self.largest))
        while infos and size and not self.stopping:
            part = infos[:size]
            try:
                self._submit_array(part)
            except TooMany as error:
                if len(part) == 1 and error.doubtful and not queued:
                    part[0].aux["track"].refused = str(error)  # none of ours is in its way
                    return infos[1:]
                if not self.kept and asked not in self.room:
                    self.tell(f"the scheduler does not take {waiting.count(len(part))} at once: {error}")
                size = len(part) // 2
                self.room[asked] = 0
            else:
                infos, queued = infos[len(part) :], True
        if not infos:
            self.room.pop(asked, None)
        return infos

    def _submit_array(self, infos: list[SubmittedJobInfo]) -> None:
        """Send one array. Raises TooMany, Unreachable and OSError; after the latter two the scheduler may have it."""
        with self.lock:
            if self.stopping:
                return
            tracks = [info.aux["track"] for info in infos]
            name = f"snakemake-{uuid.uuid4().hex[:8]}"
            self.journal.intend(name, [t.key for t in tracks], [t.losses for t in tracks])
            for place, track in enumerate(tracks):
                track.folder, track.name, track.place = self.journal.folder / name, name, (place, len(tracks))
            commands = [t.command for t in tracks]
            try:
                ids = self.backend.submit(tracks[0].folder, name, tracks[0].request, commands, self.parallel)
            except (Refused, TooMany, ValueError) as error:
                self.journal.refuse(name)
                shutil.rmtree(tracks[0].folder, ignore_errors=True)
                for track in tracks:
                    track.name = ""
                    track.refused = None if isinstance(error, TooMany) else refusal.advised(str(error), self.places)
                if isinstance(error, TooMany):
                    raise
                return
            self.journal.accept(name, ids)
            for info, job_id in zip(infos, ids, strict=True):
                info.external_jobid = job_id
