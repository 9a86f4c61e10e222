"""Samples the job's GPUs on one node through NVML while its ranks run, from a process of its own.

    python -m nightsweep.jobs.telemetry.gpu.sampler POINT/timed        # until SIGTERM

The rate is the point's `nvml_hz`. Cheap values are read at that rate; GPM counters, which move every 100 ms, at 10 Hz
at most; energy twice a second, because the call keeps a core busy for milliseconds; the power limit, errors and
processes once a second.
Slow calls have a thread of their own, so that they do not set the rate; rows of the log (jobs/telemetry/gpu/log.py) are
therefore sparse.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nightsweep.jobs.host import clock, gpus
from nightsweep.jobs.host.processes import die_with_parent, end_on_sigterm
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import write_json
from nightsweep.jobs.sweep.alert import Alert
from nightsweep.jobs.sweep.order import read_order
from nightsweep.jobs.telemetry.gpu import fields, gpm
from nightsweep.jobs.telemetry.gpu.events import Events, Losses, Lows, watch_xid
from nightsweep.jobs.telemetry.gpu.log import Log
from nightsweep.jobs.telemetry.gpu.strangers import Strangers

GPM_HZ = 10
SLOW_S = 0.5
FLUSH_S = 0.25
LIVE_S = 1.0


class Sampler:
    """All readers of a node, and where their readings go."""

    def __init__(self, run_folder: RunFolder, hz: float, alert: Alert) -> None:
        self.run_folder, self.hz, self.host = run_folder, hz, socket.gethostname()
        self.events = Events(run_folder.events(self.host), self.host)
        self.gpus = gpus.job_gpus()
        self.missing: dict[str, dict[str, str]] = {gpu.uuid: {} for gpu in self.gpus}
        self.readers = [fields.Reader(gpu, self.missing[gpu.uuid]) for gpu in self.gpus]
        self.counters = [gpm.GpmReader(gpu, self.missing[gpu.uuid]) for gpu in self.gpus]
        self.strangers = Strangers(run_folder, self.host, self.events)
        self.every_second = (fields.POWER_LIMIT, fields.ECC, self.strangers.reading)
        self.losses = Losses(self.events)
        self.lows = Lows(alert, self.events)
        self.latest: dict[str, dict[str, Any]] = {gpu.uuid: {} for gpu in self.gpus}
        self.totals = {gpu.uuid: _total_memory(gpu) for gpu in self.gpus}
        self.missed = 0
        self.began = time.monotonic()
        self.log = Log(run_folder.nvml(self.host), self.header())

    def header(self) -> dict[str, Any]:
        """What the log says of itself: one round of readings tells what is missing."""
        for reader in self.readers:
            reader.read(*fields.EVERY_TICK, fields.ENERGY, *self.every_second)
        time.sleep(1 / GPM_HZ)  # so that the counters move once
        for counter in self.counters:
            counter.read()
        self.tell_losses()
        devices = [{"gpu": g.index, "uuid": g.uuid, "mig": g.instance is not None} for g in self.gpus]
        return {"host": self.host, "hz": self.hz, "gpus": devices, "missing": self.missing}

    def tick(self, with_counters: bool) -> None:
        """One reading of every GPU."""
        for gpu, reader, counter in zip(self.gpus, self.readers, self.counters, strict=True):
            counted = counter.read() if with_counters else {}
            if counted:  # a row of its own: another call may take its time, and these values are of their span
                mono_ns = counter.since_ns or 0
                utc_ns = clock.now_ns() - time.monotonic_ns() + mono_ns
                self.log.add(gpu.index, gpu.uuid, counted, (utc_ns, mono_ns))
            at = clock.now_ns(), time.monotonic_ns()
            values = reader.read(*fields.EVERY_TICK)
            self.log.add(gpu.index, gpu.uuid, values, at)
            self.latest[gpu.uuid].update(values | counted)
            by_counter = "sm_active_percent" not in self.missing[gpu.uuid]
            busy = counted.get("sm_active_percent") if by_counter else values.get("utilization_percent")
            self.lows.see(gpu, busy, at[1] / 1e9)

    def tell_losses(self) -> None:
        for gpu, reader, counter in zip(self.gpus, self.readers, self.counters, strict=True):
            gone = sorted({*reader.gone, *counter.gone})
            self.losses.see(gpu, {name: self.missing[gpu.uuid][name] for name in gone})

    def slow(self, stop: threading.Event) -> None:
        """Energy, power limit, errors and processes, until stopped."""
        turn, due = 0, time.monotonic()
        while not stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + SLOW_S, time.monotonic())
            for gpu, reader in zip(self.gpus, self.readers, strict=True):
                before = clock.now_ns(), time.monotonic_ns()
                energy = reader.read(fields.ENERGY)
                took = (time.monotonic_ns() - before[1]) // 2
                if energy:
                    self.log.add(gpu.index, gpu.uuid, energy, (before[0] + took, before[1] + took))
                if turn % round(1 / SLOW_S) == 0:
                    self.log.add(gpu.index, gpu.uuid, reader.read(*self.every_second))
            turn += 1

    def tell_end(self, what: str, work: Callable[..., None], *arguments: Any) -> None:
        """Do a thread's work. An error that ends it is an event, for the other readings go on."""
        try:
            work(*arguments)
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            self.events.add("sampler_lost", f"{what} are no longer read: {why}")

    def run(self, stop: threading.Event) -> None:
        """Sample until stopped. A tick that is late by more than a period is left out and counted."""
        slow = threading.Thread(target=self.tell_end, args=("energy, limits, errors, processes", self.slow, stop))
        slow.start()
        xid = ("XID and ECC errors", watch_xid, self.gpus, self.events)
        # Not waited for at the end: NVML hears of nothing else before its own time is over.
        threading.Thread(target=self.tell_end, args=xid, daemon=True).start()
        period, number = 1.0 / self.hz, 0
        every = max(1, round(self.hz / GPM_HZ))
        start = flushed = lived = time.monotonic()
        while not stop.wait(max(0.0, start + number * period - time.monotonic())):
            self.tick(number % every == 0)
            now = time.monotonic()
            if now - flushed >= FLUSH_S:
                self.log.flush()
                flushed = now
            if now - lived >= LIVE_S:
                self.tell_losses()
                write_json(self.run_folder.live(self.host), self.live())
                lived = now
            following = max(number + 1, int((time.monotonic() - start) / period))
            self.missed += following - number - 1
            number = following
        slow.join()
        self.log.close()
        self.tell_losses()
        write_json(self.run_folder.live(self.host), self.live())

    def live(self) -> dict[str, Any]:
        """The latest readings, for `nightsweep watch`, and what the sampler itself has used."""
        now, names = time.monotonic(), ("sm_active_percent", "utilization_percent", "memory_used_bytes")
        shown = [
            {
                "gpu": gpu.index,
                "uuid": gpu.uuid,
                **{name: self.latest[gpu.uuid].get(name) for name in names},
                "power_w": self.latest[gpu.uuid].get("power_instant_w"),
                "memory_total_bytes": self.totals[gpu.uuid],
                "low_s": self.lows.seconds(gpu, now),
            }
            for gpu in self.gpus
        ]
        alert = self.lows.alert
        return {
            "schema": 1,
            "t_ns": clock.now_ns(),
            "host": self.host,
            "hz": self.hz,
            "alert": {"below_percent": alert.below_percent, "for_s": alert.for_s},
            "gpus": shown,
            "sampler": {"cpu_s": time.process_time(), "wall_s": now - self.began, "missed": self.missed},
            "missing": {uuid: dict(reasons) for uuid, reasons in self.missing.items()},  # another thread adds to them
        }


def _total_memory(gpu: gpus.Gpu) -> int | None:
    import pynvml

    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(gpu.handle).total)
    except pynvml.NVMLError:
        return None


def main() -> None:
    die_with_parent()
    run_folder, stop = RunFolder(Path(sys.argv[1])), threading.Event()
    end_on_sigterm(stop)
    order = read_order(run_folder)
    Sampler(run_folder, order.point().nvml_hz, order.alert).run(stop)
    sys.stdout.flush()
    sys.stderr.flush()
    # All is written; the interpreter would take down what Arrow brought, pandas where there is one, while the job waits
    # for this process: 0.2 s, and four times that on a busy node.
    os._exit(0)


if __name__ == "__main__":
    main()
