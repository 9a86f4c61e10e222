"""Whose processes are on the GPU: the job's own, or somebody else's.

NVML gives process ids of the host. In a container with ids of its own none of them is a rank's: then nobody is called
a stranger.
"""

from __future__ import annotations

from typing import Any

import psutil

from nightsweep.jobs.host.gpus import Gpu
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.point_folder import pids_of_ranks
from nightsweep.jobs.telemetry.gpu.events import Events
from nightsweep.jobs.telemetry.gpu.fields import Reading, Values


class Strangers:
    """Counts the processes on each GPU, and tells of the first of each stranger."""

    def __init__(self, run_folder: RunFolder, host: str, events: Events) -> None:
        self.run_folder, self.host, self.events = run_folder, host, events
        self.known: dict[int, bool] = {}
        self.same_ids = False
        self.reported: set[tuple[str, int]] = set()
        self.reading = Reading(("processes", "foreign_processes"), self._read)

    def _read(self, n: Any, gpu: Gpu) -> Values:
        """Processes with a context on the GPU; foreign ones where the ids can be distinguished."""
        pids = {process.pid for process in n.nvmlDeviceGetComputeRunningProcesses(gpu.handle)}
        foreign = sorted(pid for pid in pids if not self.ours(pid))
        if not self.same_ids:
            return len(pids), None
        for pid in foreign:
            self.tell(gpu, pid)
        return len(pids), len(foreign)

    def ours(self, pid: int) -> bool:
        """Whether a rank of this host started the process. One that cannot be seen from here was not."""
        if pid not in self.known:
            ranks = pids_of_ranks(self.run_folder, self.host)
            if not ranks:
                return False
            try:
                self.known[pid] = bool(({pid} | {p.pid for p in psutil.Process(pid).parents()}) & ranks)
            except psutil.Error:
                self.known[pid] = False
            self.same_ids |= self.known[pid]
        return self.known[pid]

    def tell(self, gpu: Gpu, pid: int) -> None:
        if (gpu.uuid, pid) not in self.reported:
            self.reported.add((gpu.uuid, pid))
            self.events.add("foreign_process", f"GPU {gpu.index}: process {pid} is not of this job", gpu)
