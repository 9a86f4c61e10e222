"""Tracers behind one protocol: none, NVTX under Nsight Systems, or the PyTorch profiler (Kineto)."""

from __future__ import annotations

import contextlib
import gzip
import shutil
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from jobs.point.point import Point
from jobs.record.folder import RunFolder
from jobs.sweep.order import TracerName


class Tracer(Protocol):
    """`range` marks a host range; `start` and `stop` enclose a captured block."""

    def range(self, name: str) -> AbstractContextManager[Any]: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


class NoTracer:
    """NVTX ranges alone, which cost next to nothing when nobody listens."""

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
    """The PyTorch profiler over a block, written as trace-rR.json.gz by the traced run; the control throws it away."""

    def __init__(self, run_folder: RunFolder, rank: int, *, deep: bool) -> None:
        self.run_folder, self.target, self.deep = run_folder, run_folder.trace(rank, "json.gz"), deep

    def range(self, name: str) -> AbstractContextManager[Any]:
        return torch.profiler.record_function(name)

    def start(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        deep = self.deep
        self.profiler = torch.profiler.profile(
            activities=activities, acc_events=True, profile_memory=deep, with_stack=deep, record_shapes=deep
        )
        self.profiler.start()

    def stop(self) -> None:
        self.profiler.stop()
        if self.run_folder.kind != "traced":
            return
        plain = self.target.with_suffix("")
        self.profiler.export_chrome_trace(str(plain))
        with plain.open("rb") as source, gzip.open(self.target, "wb", compresslevel=3) as sink:
            shutil.copyfileobj(source, sink)
        plain.unlink()


def make_tracer(kind: TracerName, run_folder: RunFolder, rank: int, point: Point) -> Tracer:
    """The tracer of this name (none, nsys or kineto); none for a rank that is not to be traced."""
    if not point.traces(rank):
        return NoTracer()
    if kind == "kineto":
        return KinetoTracer(run_folder, rank, deep=point.trace_preset == "deep")
    return NsysTracer() if kind == "nsys" else NoTracer()
