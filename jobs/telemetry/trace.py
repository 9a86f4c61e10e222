"""Tracers behind one protocol: none, NVTX under Nsight Systems, or the PyTorch profiler (Kineto)."""

from __future__ import annotations

import contextlib
import gzip
import shutil
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from jobs.look import Look


class Tracer(Protocol):
    """`range` marks a host range; `start` and `stop` enclose the traced window."""

    def range(self, name: str) -> AbstractContextManager[Any]: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


class NoTracer:
    """The timed look: NVTX ranges alone, which cost next to nothing when nobody listens."""

    def range(self, name: str) -> AbstractContextManager[Any]:
        return torch.cuda.nvtx.range(name) if torch.cuda.is_available() else contextlib.nullcontext()

    def start(self) -> None:
        return

    def stop(self) -> None:
        return


class NsysTracer(NoTracer):
    """Opens and closes nsys' capture range (--capture-range=cudaProfilerApi)."""

    def start(self) -> None:
        torch.cuda.cudart().cudaProfilerStart()

    def stop(self) -> None:
        torch.cuda.cudart().cudaProfilerStop()


class KinetoTracer:
    """The PyTorch profiler over the window, written as trace-rR.json.gz."""

    def __init__(self, look: Look, rank: int) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self.profiler = torch.profiler.profile(activities=activities, acc_events=True)
        self.target = look.trace(rank, "json.gz")

    def range(self, name: str) -> AbstractContextManager[Any]:
        return torch.profiler.record_function(name)

    def start(self) -> None:
        self.profiler.start()

    def stop(self) -> None:
        self.profiler.stop()
        plain = self.target.with_suffix("")
        self.profiler.export_chrome_trace(str(plain))
        with plain.open("rb") as source, gzip.open(self.target, "wb", compresslevel=3) as sink:
            shutil.copyfileobj(source, sink)
        plain.unlink()


def make_tracer(kind: str, look: Look, rank: int) -> Tracer:
    """The tracer of this name: none, nsys or kineto."""
    if kind == "kineto":
        return KinetoTracer(look, rank)
    return NsysTracer() if kind == "nsys" else NoTracer()
