"""DistributedDataParallel averages gradients in the last of a step's passes alone, as a script's `no_sync` has it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any


def average_last(used: Callable[[], None]) -> None:
    """Only the last pass of a step averages a model's gradients: as many as it had up to its optimizer's step before.
    A step that a gradient scaler skips is one as well."""
    import torch
    from torch.nn.parallel import DistributedDataParallel as Ddp

    ddp: Any = Ddp
    scaler: Any = torch.amp.GradScaler
    optimizers: Any = torch.optim.Optimizer
    counts: Any = weakref.WeakKeyDictionary()  # passes of each model, since its last step and in the one before
    forward, wrap = ddp.forward, optimizers.profile_hook_step

    @functools.wraps(forward)
    def run_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.training and torch.is_grad_enabled():
            passes, usual = counts.get(self, (0, 1))
            counts[self] = passes + 1, usual
            self.require_backward_grad_sync = passes + 1 >= usual
            if not self.require_backward_grad_sync:
                used()
        return forward(self, *args, **kwargs)

    def stepped(optimizer: Any) -> None:
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for model, (passes, _) in list(counts.items()):
            if passes and any(id(parameter) in own for parameter in model.parameters()):
                counts[model] = 0, passes

    def profile_hook_step(function: Callable[..., Any]) -> Callable[..., Any]:
        return then_counted(wrap(function), 0)

    def then_counted(step: Callable[..., Any], place: int) -> Callable[..., Any]:
        @functools.wraps(step)
        def stepping(*args: Any, **kwargs: Any) -> Any:
            found = step(*args, **kwargs)
            stepped(args[place])
            return found

        return stepping

    ddp.forward, scaler.step = run_forward, then_counted(scaler.step, 1)
    optimizers.profile_hook_step = staticmethod(profile_hook_step)
