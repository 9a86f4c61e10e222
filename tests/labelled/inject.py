"""Causes that no setting can make, put into a rank before its worker runs (site/sitecustomize.py).

Each function takes the step loop of the rank, ready to run, and the options that runs.yaml gives it.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

import nightsweep.jobs.rank.loader
import nightsweep.jobs.rank.loop
from nightsweep.jobs.rank.loop import Loop
from tests.labelled.runs import INJECTION_VARIABLE

EDGE = 8192


def before_step(loop: Loop, act: Callable[[], None]) -> None:
    """Have it done between the backward pass and the optimizer."""
    step = loop.trainer.step

    def acting() -> None:
        act()
        step()

    loop.trainer.step = acting


def on_batches(loop: Loop, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Have each batch changed within its copy to the device."""
    prepare = loop.work.prepare
    loop.work = dataclasses.replace(loop.work, prepare=lambda batch: change(prepare(batch)))


def gradients(loop: Loop) -> list[torch.Tensor]:
    return [p.grad for p in loop.work.model.parameters() if p.grad is not None]


def finite_checks(loop: Loop) -> None:
    """The host looks for NaN in the output of every module without children, and in every gradient."""

    def check(_: Any, __: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and not torch.isfinite(output).all().item():
            raise ValueError("not finite")

    for module in loop.work.model.modules():
        if not any(module.children()):
            module.register_forward_hook(check)
    before_step(loop, lambda: [check(None, None, gradient) for gradient in gradients(loop)] and None)


def gradient_medians(loop: Loop) -> None:
    """Gradients are clipped at the median of their magnitudes; kthvalue takes one block of threads for each."""

    def clip() -> None:
        for gradient in gradients(loop):
            magnitudes = gradient.abs().flatten()
            median = torch.kthvalue(magnitudes, magnitudes.numel() // 2 + 1).values
            torch.clamp(gradient, -median, median, out=gradient)

    before_step(loop, clip)


def host_metrics(loop: Loop, ms: float) -> None:
    """Before each optimizer step the host reads a value of the GPU, and then computes for so long."""

    def read() -> None:
        gradients(loop)[0].sum().item()
        until = time.perf_counter() + ms / 1e3
        while time.perf_counter() < until:
            pass

    before_step(loop, read)


def compare_in_pieces(loop: Loop, kib: int) -> None:
    """Ranks take the largest of their gradients, which are equal, one small piece after the other."""

    def compare() -> None:
        for gradient in gradients(loop):
            for piece in gradient.reshape(-1).split((kib << 10) // gradient.element_size()):
                torch.distributed.all_reduce(piece, torch.distributed.ReduceOp.MAX)

    before_step(loop, compare)


def extra_input(loop: Loop, mib: int, pinned: bool) -> None:
    """Each batch has so much more that goes to the device, on the stream of the training."""
    more = torch.ones(mib << 20, dtype=torch.uint8, pin_memory=pinned and torch.cuda.is_available())

    def copy(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        more.to(loop.device, non_blocking=pinned)
        return batch

    on_batches(loop, copy)


def extra_products(loop: Loop, rank: int, count: int, edge: int = EDGE) -> None:
    """One rank multiplies so many matrices more in each step."""
    if loop.rank != rank:
        return
    matrix = torch.randn(edge, edge, device=loop.device, dtype=torch.bfloat16)
    before_step(loop, lambda: [torch.mm(matrix, matrix) for _ in range(count)] and None)


def slow_loader(loop: Loop, rank: int, ms: float) -> None:
    """One rank's loader takes so much longer for each batch."""
    if loop.rank != rank:
        return
    endless = nightsweep.jobs.rank.loop.endless

    def slowly(loader: Any) -> Iterator[Any]:
        for batch in endless(loader):
            time.sleep(ms / 1e3)
            yield batch

    nightsweep.jobs.rank.loop.endless = slowly


def memory_cap(loop: Loop, share: float, mib: int) -> None:
    """From the ninth step on the process may take only so many times the memory that it has needed (the first steps
    make the optimizer's state), and in each step another stream takes and gives back a block of so many MiB. What is
    cached for one stream is of no use to the other, so the allocator fails, gives it back and asks anew, for both."""
    side = torch.cuda.Stream(loop.device)
    steps = itertools.count(1)

    def take() -> None:
        if next(steps) == 9:
            total = torch.cuda.get_device_properties(loop.device).total_memory
            most = torch.cuda.max_memory_allocated(loop.device) * share
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(most / total, loop.device)
        with torch.cuda.stream(side):
            torch.empty(mib << 20, dtype=torch.uint8, device=loop.device)

    before_step(loop, take)


def cpu_neighbours(loop: Loop, cores: int, spinners: int) -> None:
    """The rank has so many cores, which busy processes share; from now on, not while it starts."""
    own = sorted(os.sched_getaffinity(0))[:cores]
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), own)
    for _ in range(spinners):
        subprocess.Popen([sys.executable, "-m", "tests.labelled.neighbours", "cpu"])


class SlowStorage(Dataset[Any]):
    """A data set of whole batches (loader mmap) whose reads take longer, the CPU doing nothing."""

    def __init__(self, dataset: Any, ms: float) -> None:
        self.dataset, self.ms, self.collate = dataset, ms, dataset.collate

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: list[int]) -> Any:
        time.sleep(self.ms / 1e3)
        return self.dataset.__getitems__(indices)


def slow_storage(make_loader: Callable[..., Any], ms: float) -> Callable[..., Any]:
    """The loader over such storage."""
    return lambda point, dataset, device: make_loader(point, SlowStorage(dataset, ms), device)


OF_LOOP: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        finite_checks, gradient_medians, host_metrics, compare_in_pieces, extra_input, extra_products, slow_loader,
        memory_cap, cpu_neighbours,
    )
}  # fmt: skip


def install() -> None:
    """What the environment asks for, into this process."""
    wanted: dict[str, dict[str, Any]] = json.loads(os.environ[INJECTION_VARIABLE])
    if options := wanted.pop("slow_storage", None):
        nightsweep.jobs.rank.loader.make_loader = slow_storage(nightsweep.jobs.rank.loader.make_loader, **options)
    run = Loop.run

    def running(loop: Loop, *given: Any) -> Any:
        if not loop.steps:  # the first run of a start
            for name, options in wanted.items():
                OF_LOOP[name](loop, **options)
        return run(loop, *given)

    Loop.run = running  # type: ignore[method-assign]
