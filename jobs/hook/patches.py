"""What of PyTorch and DeepSpeed is wrapped, so that steps, waits for data and losses are seen from within."""

from __future__ import annotations

import functools
import re
import threading
import time
from types import ModuleType
from typing import Any

from .models import GRAPHS
from .optimizers import patch_optimizer
from .watch import Watch

STEP_RANGE = re.compile(
    r"(?i)^(?:[\w.]*[:/ ])?(?:(?:global|train(?:ing)?)[_ ]?)?(?:step|iter(?:ation)?)s?[ _#:=-]*\d+$"
)
"""Names of NVTX ranges that are steps: those that analysis/metrics/steps/detection.py takes for such."""


def patch_torch(watch: Watch) -> None:
    """Wrap what trains, loads and marks steps in PyTorch."""
    import torch

    # Before the script's profiler is replaced: Nightsweep's own is the real one.
    from ..telemetry.trace import tracers  # noqa: F401

    watch.beat("start")
    watch.synchronize = torch.cuda.synchronize
    patch_optimizer(watch, torch.optim.Optimizer)
    _patch_loader(watch)
    _patch_backward(watch)
    _patch_profiler(watch)
    _patch_ranges(watch)
    _count_calls(watch)


def _patch_loader(watch: Watch) -> None:
    """Time in the loader, also as it starts its workers and ends them, and the samples of its batches."""
    from torch.utils.data import dataloader

    base: Any = dataloader._BaseDataLoaderIter
    take, iterate = base.__next__, dataloader.DataLoader.__iter__
    here = threading.local()

    def timed(call: Any, of: Any) -> Any:
        """What the call returns. Of a loader within another one the outer one's time counts."""
        outer, here.inside = not getattr(here, "inside", False), True
        began = time.perf_counter_ns()
        try:
            with watch.spanned("data"):
                return call(of)
        finally:
            if outer:
                here.inside = False
                if watch.current is not None:
                    watch.current.data_ns += time.perf_counter_ns() - began

    @functools.wraps(take)
    def next_batch(self: Any) -> Any:
        if watch.over or watch.bare:
            return take(self)
        batch = timed(take, self)
        if watch.current is None:
            watch.beat("data")
        else:
            samples, tokens = size(batch)
            watch.current.samples += samples
            watch.current.tokens += tokens
        return batch

    @functools.wraps(iterate)
    def iterator(self: Any) -> Any:
        return iterate(self) if watch.over or watch.bare else timed(iterate, self)

    base.__next__ = next_batch
    dataloader.DataLoader.__iter__ = iterator  # type: ignore[method-assign]
    made: Any = dataloader.DataLoader.__init__

    @functools.wraps(made)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        if watch.is_own():
            watch.found_place("DataLoader")
            watch.loader_workers = max(watch.loader_workers or 0, self.num_workers)

    dataloader.DataLoader.__init__ = init  # type: ignore[method-assign]


def size(batch: Any) -> tuple[int, int]:
    """Samples of a batch, by the first dimension of its first tensor, and tokens, where it has input_ids."""
    import torch

    if isinstance(batch, torch.Tensor):
        return (batch.shape[0] if batch.dim() else 1), 0
    if hasattr(batch, "keys"):
        ids = batch["input_ids"] if "input_ids" in batch.keys() else None  # noqa: SIM118 not always a dict
        if isinstance(ids, torch.Tensor):
            return ids.shape[0], ids.numel()
        batch = [batch[key] for key in batch.keys()]  # noqa: SIM118
    if isinstance(batch, (list, tuple)):
        for part in batch:
            found = size(part)
            if found[0]:
                return found
    return 0, 0


def _patch_backward(watch: Watch) -> None:
    """The scalar that a backward pass begins with is a loss; one that a gradient scaler has scaled, before that."""
    import torch

    backward = torch.Tensor.backward
    graphs = watch.settings["compile"] in GRAPHS
    scaled: list[Any] = [None, None]

    @functools.wraps(backward)
    def run_backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.over or watch.bare or not watch.is_own():
            return backward(self, *args, **kwargs)
        if watch.current is None:
            watch.beat("steps")
        elif self.numel() == 1:
            loss = scaled[1] if self is scaled[0] else self
            # What a CUDA graph gave is overwritten before it is read.
            watch.current.losses.append(loss.detach().clone() if graphs else loss.detach())
        scaled[:] = [None, None]
        with watch.spanned("backward"):
            return backward(self, *args, **kwargs)

    torch.Tensor.backward = run_backward  # type: ignore[method-assign]
    passes = torch.autograd.backward
    under_way = getattr(torch._C, "_current_graph_task_id", None)
    if under_way is not None:  # PyTorch 2.1
        watch.in_backward = lambda: bool(under_way() != -1)

    @functools.wraps(passes)
    def run_passes(*args: Any, **kwargs: Any) -> None:
        try:
            passes(*args, **kwargs)
        finally:
            watch.backward_ended()

    torch.autograd.backward = run_passes
    scaler: Any = torch.amp.GradScaler
    scale = scaler.scale

    @functools.wraps(scale)
    def scale_loss(self: Any, outputs: Any) -> Any:
        found = scale(self, outputs)
        if isinstance(outputs, torch.Tensor):
            scaled[:] = [found, outputs]
        return found

    scaler.scale = scale_loss


def _patch_profiler(watch: Watch) -> None:
    """A script's own profiler marks its steps and does not run: it would be timed, and be in the trace's way."""
    import torch
    from torch.autograd.profiler_util import EventList

    real: Any = torch.profiler.profile

    class ScriptProfiler(real):  # type: ignore[misc]
        def start(self) -> None:
            watch.notes.append("the script's own profiler was not run")

        def step(self) -> None:
            watch.mark("profiler")

        def key_averages(self, *_: Any, **__: Any) -> Any:
            return EventList([])

        def stop(self, *_: Any, **__: Any) -> None:
            return

        events = key_averages
        export_chrome_trace = export_stacks = export_memory_timeline = toggle_collection_dynamic = stop

    ScriptProfiler.__name__ = real.__name__
    torch.profiler.profile = ScriptProfiler  # type: ignore[misc]


def _patch_ranges(watch: Watch) -> None:
    """NVTX ranges named like steps begin one."""
    import torch

    push = torch.cuda.nvtx.range_push

    @functools.wraps(push)
    def range_push(msg: str, *args: Any, **kwargs: Any) -> Any:
        if STEP_RANGE.match(msg):
            watch.mark("range")
        return push(msg, *args, **kwargs)

    torch.cuda.nvtx.range_push = range_push


def _count_calls(watch: Watch) -> None:
    """Lines of the script that do what may cost time: made once, or called in steps."""
    import torch
    from torch.nn.parallel import DistributedDataParallel as Ddp

    ddp: Any = Ddp.__init__

    @functools.wraps(ddp)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        watch.found_place("DistributedDataParallel")
        ddp(self, *args, **kwargs)

    Ddp.__init__ = init  # type: ignore[method-assign]
    for name in ("empty_cache", "synchronize"):
        call = getattr(torch.cuda, name)

        @functools.wraps(call)
        def counting(*args: Any, _call: Any = call, _name: str = name, **kwargs: Any) -> Any:
            if watch.current is not None and watch.is_own():
                watch.found_place(f"torch.cuda.{_name}")
            return _call(*args, **kwargs)

        setattr(torch.cuda, name, counting)


def patch_engine(watch: Watch, module: ModuleType) -> None:
    """DeepSpeed's engine steps once for several calls of an optimizer, or of none that PyTorch knows. Of several
    engines the first one counts."""
    engine: Any = module.DeepSpeedEngine
    step = engine.step
    first: list[int] = []

    @functools.wraps(step)
    def stepping(self: Any, *args: Any, **kwargs: Any) -> Any:
        last = self.is_gradient_accumulation_boundary() and id(self) in (first or [id(self)])
        with watch.spanned("optimizer"):
            found = step(self, *args, **kwargs)
        if last:
            first[:] = [id(self)]
            watch.mark("engine")
        return found

    engine.step = stepping
