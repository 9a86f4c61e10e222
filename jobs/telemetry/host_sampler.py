"""Samples the host side of a job on one node while its ranks run, from a process of its own:

    python -m nightsweep.jobs.telemetry.host_sampler POINT/timed        # until SIGTERM

CPU time, memory and storage traffic of the ranks and of all that they started, and what else the host was busy with,
twice a second. Lines are flushed as they are taken, so a killed job keeps its log.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from pathlib import Path

import psutil

from nightsweep.jobs.host import clock
from nightsweep.jobs.host.processes import die_with_parent, end_on_sigterm
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import json_line
from nightsweep.jobs.record.launch_files import HostSample
from nightsweep.jobs.record.point_folder import pids_of_ranks
from nightsweep.jobs.telemetry import host_load

INTERVAL_S = 0.5


class HostReader:
    """CPU time, memory and storage traffic of the job's processes on this host, and the load of the whole host."""

    def __init__(self, run_folder: RunFolder) -> None:
        self.run_folder, self.host = run_folder, socket.gethostname()
        self.seen: dict[int, psutil.Process] = {}
        self.cpu_s: dict[int, float] = {}
        self.last = host_load.read_counts()

    def processes(self) -> list[psutil.Process]:
        """The workers whose pid files name this host, and all that they started."""
        pids: set[int] = set()
        for rank in pids_of_ranks(self.run_folder, self.host):
            with contextlib.suppress(psutil.NoSuchProcess):
                pids |= {rank, *(child.pid for child in psutil.Process(rank).children(recursive=True))}
        self.seen = {pid: process for pid in pids if (process := self.seen.get(pid) or process_of(pid))}
        return list(self.seen.values())

    def read(self) -> HostSample:
        cpu_s = rss = read = write = count = 0.0
        for process in self.processes():
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    spent = times.user + times.system
                    cpu_s += spent - self.cpu_s.get(process.pid, spent)
                    self.cpu_s[process.pid] = spent
                    rss += process.memory_info().rss
                    io = process.io_counters()
                    read, write, count = read + io.read_bytes, write + io.write_bytes, count + 1
            except psutil.Error:
                continue
        now = host_load.read_counts()
        load = host_load.load_between(self.last, now)
        percent, self.last = 100 * cpu_s / max(now.at_s - self.last.at_s, 1e-6), now
        return HostSample(
            t_ns=clock.now_ns(),
            mono_ns=time.monotonic_ns(),
            host=self.host,
            cpu_percent=round(percent, 2),
            rss_bytes=int(rss),
            host_memory_used_bytes=psutil.virtual_memory().used,
            read_bytes=int(read),
            write_bytes=int(write),
            num_processes=int(count),
            other_cpu_percent=other_percent(load.busy_percent, percent),
            steal_percent=load.steal_percent,
            runnable=now.runnable,
            psi_cpu_percent=load.stalled_percent["cpu"],
            psi_io_percent=load.stalled_percent["io"],
            psi_memory_percent=load.stalled_percent["memory"],
        )


def other_percent(busy_percent: float | None, own_percent: float) -> float | None:
    """Share of all cores that others than the job's processes kept busy, %; `own_percent`: 100 is one core."""
    if busy_percent is None:
        return None
    return round(max(busy_percent - own_percent / (os.cpu_count() or 1), 0.0), 2)


def process_of(pid: int) -> psutil.Process | None:
    """None where it has ended meanwhile: a compiler's workers come and go."""
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def main() -> None:
    die_with_parent()
    run_folder, host, stop = RunFolder(Path(sys.argv[1])), socket.gethostname(), threading.Event()
    end_on_sigterm(stop)
    reader = HostReader(run_folder)
    with run_folder.host_samples(host).open("a") as sink:
        while not stop.wait(INTERVAL_S):
            sink.write(json_line(reader.read()))
            sink.flush()


if __name__ == "__main__":
    main()
