"""Tracers: none, NVTX under Nsight Systems, or the PyTorch profiler (Kineto)."""

from __future__ import annotations

import contextlib
import functools
import gzip
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.profiler import profile  # by its name, which is another class's in a script that is watched

from ...record.folder import RunFolder


class Tracer:
    """`range` marks a host range, `open` one that the function which it returns ends; `start` and `stop` enclose a
    captured block. Here: NVTX ranges alone, which cost next to nothing when nobody listens."""

    def range(self, name: str) -> AbstractContextManager[Any]:
        return torch.cuda.nvtx.range(name) if torch.cuda.is_available() else contextlib.nullcontext()

    def open(self, name: str) -> Callable[[], Any]:
        if not torch.cuda.is_available():
            return lambda: None
        # Not pushed and popped: it may begin and end within a script's own ranges.
        return functools.partial(torch.cuda.nvtx.range_end, torch.cuda.nvtx.range_start(name))

    def start(self) -> None:
        return

    def stop(self) -> None:
        return


class NsysTracer(Tracer):
    """Opens and closes nsys' capture range (--capture-range=cudaProfilerApi)."""

    def start(self) -> None:
        torch.cuda.cudart().cudaProfilerStart()

    def stop(self) -> None:
        torch.cuda.cudart().cudaProfilerStop()


class KinetoTracer(Tracer):
    """The PyTorch profiler over a block, written as trace-rR.json.gz of the traced run; the control throws it away.
    Until the block it is no tracer: timed steps may come before it, and CUPTI is loaded by its start."""

    def __init__(self, run_folder: RunFolder, rank: int, *, deep: bool) -> None:
        in_control = run_folder.kind.startswith("cost-")
        self.target = None if in_control else run_folder.traced.trace(rank, "json.gz")
        self.deep, self.capturing = deep, False
        self.unclosed: list[str] = []

    def range(self, name: str) -> AbstractContextManager[Any]:
        return torch.profiler.record_function(name) if self.capturing else super().range(name)

    def open(self, name: str) -> Callable[[], Any]:
        if not self.capturing:
            return super().open(name)
        found = self.range(name)
        found.__enter__()
        self.unclosed.append(name)

        def close() -> None:
            self.unclosed.remove(name)
            found.__exit__(None, None, None)

        return close

    def start(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        deep = self.deep
        # Not acc_events: an object of Python for each event takes 10 to 25 s for a few steps of 8 B, with the GPU held.
        self.profiler = profile(activities=activities, profile_memory=deep, with_stack=deep, record_shapes=deep)
        self.profiler.start()
        self.capturing = True

    def stop(self) -> None:
        self.capturing = False
        self.profiler.stop()
        if self.target is None:
            return
        plain = self.target.with_suffix("")
        self.profiler.export_chrome_trace(str(plain))
        with plain.open("rb") as source, gzip.open(self.target, "wb", compresslevel=3) as sink:
            if not self.unclosed:
                shutil.copyfileobj(source, sink)
            for line in source:  # the profiler ends what is open where it stops itself: that is the length of no step
                for name in self.unclosed:
                    line = line.replace(f'"{name}"'.encode(), b'"end of the script"')
                sink.write(line)
        plain.unlink()


def make_tracer(kind: str, run_folder: RunFolder, rank: int, *, deep: bool) -> Tracer:
    """The tracer of this name (none, nsys or kineto)."""
    if kind == "kineto":
        return KinetoTracer(run_folder, rank, deep=deep)
    return NsysTracer() if kind == "nsys" else Tracer()
