"""What of PyTorch and DeepSpeed is wrapped, so that steps, waits for data and losses are seen from within."""

from __future__ import annotations

import functools
import re
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .models import GRAPHS, weights_layout
from .watch import Watch

STEP_RANGE = re.compile(
    r"(?i)^(?:[\w.]*[:/ ])?(?:(?:global|train(?:ing)?)[_ ]?)?(?:step|iter(?:ation)?)s?[ _#:=-]*\d+$"
)
"""Names of NVTX ranges that are steps: those that analysis/metrics/steps/detection.py takes for such."""


OTHERS = 20
"""Steps of another optimizer, at least, after which the one that led is taken to be done with."""


def patch_torch(watch: Watch) -> None:
    """Wrap what trains, loads and marks steps in PyTorch."""
    import torch

    # Before the script's profiler is replaced: Nightsweep's own is the real one.
    from ..telemetry.trace import tracers  # noqa: F401

    watch.beat("start")
    watch.synchronize = torch.cuda.synchronize
    _patch_optimizer(watch, torch.optim.Optimizer)
    _patch_loader(watch)
    _patch_backward(watch)
    _patch_profiler(watch)
    _patch_ranges(watch)
    _count_calls(watch)


class Leader:
    """The optimizer whose steps are the script's: the first that steps. A script with several steps each of them once
    for a batch. Where it is gone, or another one steps on without it, as in a second phase of the training, that leads.
    """

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.own: weakref.ref[Any] | None = None
        self.most = 0
        self.steps = 0  # of any
        self.others: Counter[int] = Counter()  # steps of each other one since this one's last
        self.latest = self.closing = 0  # which stepped, and which does so as the last before this one, by id

    def stepped(self, optimizer: Any) -> None:
        self.steps += 1
        if self.own is None:
            self.own = weakref.ref(optimizer)
        leader = self.own()
        if leader is optimizer:
            self.closing = self.latest
        self.latest = id(optimizer)
        if self.latest == self.closing:
            self.watch.begin_graphs()
        if leader is not optimizer:
            self.others[id(optimizer)] += 1
            if leader is not None and self.others[id(optimizer)] <= max(OTHERS, 3 * self.most):
                return
            self.own = weakref.ref(optimizer)
            self.watch.drop_step("optimizer", "the script went on with another optimizer")
        elif self.others:
            self.most = max(self.most, *self.others.values())
        self.others.clear()
        self.watch.mark("optimizer")


def _patch_optimizer(watch: Watch, optimizer: Any) -> None:
    """Each return from a step of the optimizer that leads is a mark, also where a gradient scaler skips the step."""
    import torch
    from torch.nn.parameter import is_lazy

    wrap = optimizer.profile_hook_step
    leader, here = Leader(watch), threading.local()

    @functools.wraps(wrap)
    def profile_hook_step(function: Callable[..., Any]) -> Callable[..., Any]:
        step = wrap(function)

        @functools.wraps(step)
        def stepping(self: Any, *args: Any, **kwargs: Any) -> Any:
            # A class whose step calls that of the class it is derived from has both wrapped.
            if getattr(here, "steps", None) is self:
                return step(self, *args, **kwargs)
            if not watch.is_own():  # what CUDA graphs gave is still to end with the step
                found = step(self, *args, **kwargs)
                leader.stepped(self)
                return found
            outer, here.steps = getattr(here, "steps", None), self
            try:
                with watch.spanned("optimizer"):
                    found = step(self, *args, **kwargs)
            finally:
                here.steps = outer
            if id(self) not in watch.trainable:
                parameters = [own for group in self.param_groups for own in group["params"] if not is_lazy(own)]
                watch.trainable[id(self)] = sum(own.numel() for own in parameters)
                if watch.weights_layout in (None, "none"):
                    watch.weights_layout = weights_layout(parameters) or watch.weights_layout
            leader.stepped(self)
            return found

        return stepping

    optimizer.profile_hook_step = staticmethod(profile_hook_step)
    scaler: Any = torch.amp.GradScaler
    scaled = scaler.step

    @functools.wraps(scaled)
    def step_or_skip(self: Any, of: Any, *args: Any, **kwargs: Any) -> Any:
        before, found = leader.steps, scaled(self, of, *args, **kwargs)
        if leader.steps == before and watch.is_own():  # a gradient was infinite; the script's step is over all the same
            leader.stepped(of)
        return found

    scaler.step = step_or_skip


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
