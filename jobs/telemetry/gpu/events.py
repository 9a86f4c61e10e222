"""What happened to a GPU while a job ran: XID errors, a stranger's process, a GPU that does nothing, a lost field.

One line an event in events-H.jsonl; the launcher copies them to the record.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from nightsweep.jobs.host import clock
from nightsweep.jobs.host.gpus import Gpu
from nightsweep.jobs.record.json_files import json_line
from nightsweep.jobs.record.launch_files import Event, EventKind
from nightsweep.jobs.sweep.alert import Alert

WAIT_MS = 500
LOST = "GPU is lost"  # as NVML's error says it


class Events:
    """The node's event log."""

    def __init__(self, path: Path, host: str) -> None:
        self.path, self.host = path, host
        self.lock = threading.Lock()

    def add(self, kind: EventKind, message: str, gpu: Gpu | None = None) -> Event:
        event = Event(
            t_ns=clock.now_ns(),
            mono_ns=time.monotonic_ns(),
            host=self.host,
            gpu=gpu.index if gpu else None,
            uuid=gpu.uuid if gpu else None,
            kind=kind,
            message=message,
        )
        with self.lock, self.path.open("a") as sink:
            sink.write(json_line(event))
        return event


class Lows:
    """How long each GPU has been under the alert's threshold."""

    def __init__(self, alert: Alert, events: Events) -> None:
        self.alert, self.events = alert, events
        self.since: dict[str, float] = {}
        self.reported: set[str] = set()

    def see(self, gpu: Gpu, percent: float | None, now: float) -> None:
        """Take a reading at `now` (s, monotonic)."""
        if percent is None:
            return
        if percent >= self.alert.below_percent:
            self.since.pop(gpu.uuid, None)
            self.reported.discard(gpu.uuid)
            return
        self.since.setdefault(gpu.uuid, now)
        if self.seconds(gpu, now) >= self.alert.for_s and gpu.uuid not in self.reported:
            self.reported.add(gpu.uuid)
            self.tell(gpu)

    def seconds(self, gpu: Gpu, now: float) -> float:
        return now - self.since.get(gpu.uuid, now)

    def tell(self, gpu: Gpu) -> None:
        text = f"GPU {gpu.index}: under {self.alert.below_percent:g} % for {self.alert.for_s:g} s"
        event = self.events.add("low_gpu", text, gpu)
        if self.alert.command:
            env = {**os.environ, "NIGHTSWEEP_EVENT": json_line(event).strip()}
            subprocess.Popen(
                self.alert.command, shell=True, env=env, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip


class Losses:
    """Tells, once each, of what a GPU gave at first and will not give again."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self.known: dict[str, set[str]] = {}

    def see(self, gpu: Gpu, reasons: dict[str, str]) -> None:
        """Take the fields that are gone, and why. Those of the first time are in the log's header."""
        known = self.known.setdefault(gpu.uuid, set(reasons))
        fresh = {name: why for name, why in reasons.items() if name not in known}
        known.update(fresh)
        for why in sorted(set(fresh.values())):
            if why.endswith(LOST):
                if LOST not in known:
                    known.add(LOST)
                    self.events.add("gpu_lost", f"GPU {gpu.index}: {LOST}", gpu)
            else:
                names = ", ".join(name for name in fresh if fresh[name] == why)
                self.events.add("field_missing", f"GPU {gpu.index}: {names}: {why}", gpu)


def watch_xid(gpus: list[Gpu], events: Events) -> None:
    """Write down XID and ECC errors as the driver reports them, to the end of the process."""
    import pynvml as n

    wanted = n.nvmlEventTypeXidCriticalError | n.nvmlEventTypeDoubleBitEccError | n.nvmlEventTypeSingleBitEccError
    try:
        boards = {g.index: Gpu(g.index, n.nvmlDeviceGetUUID(g.board), g.board, g.board) for g in gpus}
        waiting = n.nvmlEventSetCreate()
        for board in boards.values():
            kinds = wanted & n.nvmlDeviceGetSupportedEventTypes(board.board)
            n.nvmlDeviceRegisterEvents(board.board, kinds, waiting)
    except n.NVMLError as error:
        events.add("field_missing", f"XID errors are not reported: {error}")
        return
    while True:
        try:
            data = n.nvmlEventSetWait_v2(waiting, WAIT_MS)
        except n.NVMLError as error:
            if error.value == n.NVML_ERROR_TIMEOUT:
                continue
            events.add("gpu_lost" if error.value == n.NVML_ERROR_GPU_IS_LOST else "field_missing", f"events: {error}")
            return
        whose = _whose(data, gpus, list(boards.values()))
        if data.eventType == n.nvmlEventTypeXidCriticalError:
            events.add("xid", f"XID {data.eventData}", whose)
        else:
            events.add("ecc", f"ECC error, event type {data.eventType}", whose)


def _whose(data: Any, gpus: list[Gpu], boards: list[Gpu]) -> Gpu | None:
    """The GPU or MIG device of an event; the whole GPU where the event is of no single MIG device of the job."""
    import pynvml as n

    try:
        uuid = n.nvmlDeviceGetUUID(data.device)
        board = next((b for b in boards if b.uuid == uuid), None)
    except n.NVMLError:  # a GPU that fell off the bus has no UUID any more
        board = next((b for b in boards if _address(b.board) == _address(data.device)), None)
    if board is None:
        return None
    return next((g for g in gpus if g.index == board.index and g.instance in (None, data.gpuInstanceId)), board)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
