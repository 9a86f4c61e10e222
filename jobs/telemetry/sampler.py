"""Samples one node while its ranks run, from a process of its own: host metrics always, NVML where it answers.

    python -m jobs.telemetry.sampler POINT/timed        # until SIGTERM

Lines are flushed as they are taken, so a killed job keeps its log.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

import psutil

from jobs.look import Look, read_json
from jobs.processes import die_with_parent
from jobs.telemetry import nvml

HOST_INTERVAL_S = 0.5
GPU_INTERVAL_S = 0.1


class HostReader:
    """CPU time, memory and storage traffic of the job's processes on this host."""

    def __init__(self, look: Look) -> None:
        self.look, self.host = look, socket.gethostname()
        self.seen: dict[int, psutil.Process] = {}
        self.cpu_s: dict[int, float] = {}
        self.last = time.monotonic()

    def processes(self) -> list[psutil.Process]:
        """The workers whose pid files name this host, and all that they started."""
        pids = set()
        for path in self.look.folder.glob("rank*.pid.json"):
            entry = read_json(path)
            if entry and entry["host"] == self.host and psutil.pid_exists(entry["pid"]):
                pids.add(entry["pid"])
                pids |= {c.pid for c in psutil.Process(entry["pid"]).children(recursive=True)}
        self.seen = {pid: self.seen.get(pid) or psutil.Process(pid) for pid in pids}
        return list(self.seen.values())

    def read(self) -> dict[str, Any]:
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
        now = time.monotonic()
        percent, self.last = 100 * cpu_s / max(now - self.last, 1e-6), now
        return {
            "cpu_percent": round(percent, 2),
            "rss_bytes": int(rss),
            "host_memory_used_bytes": psutil.virtual_memory().used,
            "read_bytes": int(read),
            "write_bytes": int(write),
            "num_processes": int(count),
        }


def write(sink: IO[str], host: str, sample: dict[str, Any]) -> None:
    sink.write(json.dumps({"t_ns": time.time_ns(), "mono_ns": time.monotonic_ns(), "host": host, **sample}) + "\n")
    sink.flush()


def watch_gpus(look: Look, host: str, stop: threading.Event) -> None:
    """NVML at its own rate, until told to stop."""
    gpus = nvml.handles()
    with look.samples("nvml", host).open("a") as sink:
        while not stop.wait(GPU_INTERVAL_S):
            for index, uuid, handle in gpus:
                write(sink, host, {"gpu": index, "uuid": uuid, **nvml.read(handle)})


def main() -> None:
    die_with_parent()
    look, host, stop = Look(Path(sys.argv[1])), socket.gethostname(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    gpus = None
    if nvml.probe()[0]:
        gpus = threading.Thread(target=watch_gpus, args=(look, host, stop))
        gpus.start()
    reader = HostReader(look)
    with look.samples("host", host).open("a") as sink:
        while not stop.wait(HOST_INTERVAL_S):
            write(sink, host, reader.read())
    if gpus is not None:
        gpus.join()


if __name__ == "__main__":
    main()
