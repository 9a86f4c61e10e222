"""Steps of optimizers: which of them end a script's step."""

from __future__ import annotations

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from .models import weights_layout
from .watch import Watch

OTHERS = 20
"""Steps of another optimizer, at least, after which the one that led is taken to be done with."""


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


def patch_optimizer(watch: Watch, optimizer: Any) -> None:
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
