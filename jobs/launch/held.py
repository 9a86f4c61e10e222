"""What a launch holds its GPUs for: its attempt, and its phases, from where it counts on.

The GPUs of a Slurm job are held from its allocation on, those of a machine without a scheduler from the start of the
launcher's process. Of several points of one process each counts from the end of the one before.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil

from nightsweep.jobs.host import clock
from nightsweep.jobs.record import phases
from nightsweep.jobs.record.folder import utc_now
from nightsweep.jobs.record.json_files import json_line
from nightsweep.jobs.record.launch_files import Start
from nightsweep.jobs.record.phases import Phase
from nightsweep.jobs.record.point_folder import count_attempts
from nightsweep.jobs.slurm import allocation


class Held:
    """The time of a launcher's process. `before`: what it did since its last point ended, or at all."""

    def __init__(self) -> None:
        self.before: list[Phase] = []

    @classmethod
    def arrived(cls) -> Held:
        """Of this process, which has just started: its first point counts from there, and in a Slurm job from its
        allocation."""
        held = cls()
        began_ns = int(psutil.Process().create_time() * 1e9)
        times = allocation.times_ns()
        marks = [("queue", times.get("SubmitTime")), ("job_start", times.get("StartTime")), ("launch", began_ns)]
        for name, start_ns in marks:
            if start_ns is not None:
                phases.append(held.before, Phase(phase=name, start_ns=start_ns))
        return held

    def begin(self, folder: Path) -> tuple[int, list[Phase]]:
        """Number this attempt at a point and note it, before anything else happens; its number, and its phases so
        far."""
        started = Start(
            attempt=count_attempts(folder) + 1,
            started_at=utc_now(),
            host=socket.gethostname(),
            pid=os.getpid(),
            slurm_id=allocation.job_id(),
            earlier_sign_ns=phases.last_sign_ns(folder),
        )
        with (folder / "attempts.jsonl").open("a") as sink:
            sink.write(json_line(started))
        found = self.before or [Phase(phase="launch", start_ns=clock.now_ns())]
        self.before = []
        return started.attempt, found

    def conclude(self, found: list[Phase]) -> list[Phase]:
        """Close the phases of a point; the next one of this process counts from here."""
        phases.append(found, Phase(phase=phases.END, start_ns=clock.now_ns()))
        self.before = [Phase(phase="launch", start_ns=found[-1].start_ns)]
        return found
