"""Forward passes: the modules that a script itself calls, and ranges around their calls in the steps that are traced.

A trace tells by these ranges what a compiler of the model would see, and what the script does beside its model.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .watch import Watch

MOST_CALLS = 50
"""Of such modules in a step, for which there are ranges: more would cost the host what the trace is to tell."""


def listen(watch: Watch, called: Callable[[Any], None]) -> Callable[[], None]:
    """Have `called` with each module with something to train that the script itself calls, and not another module,
    where gradients are recorded; the function that ends it."""
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    handle: Any = None
    ended = False

    def begin() -> None:
        nonlocal handle
        if not ended:  # as a step may within the call of a module that takes it
            handle = register_module_forward_pre_hook(heard)

    def end() -> None:
        nonlocal ended
        ended = True
        handle.remove()

    def heard(module: Any, _: Any) -> None:
        # What a backward pass calls again, for want of what the forward pass has not kept, is a part of a model.
        if watch.in_backward() or not torch.is_grad_enabled():
            return
        if not _learns(module):
            return

        def over(*_: Any) -> None:
            returned.remove()
            begin()

        if not isinstance(module, torch.jit.ScriptModule):  # which takes no hook, and of whose parts no call is heard
            handle.remove()  # what it calls is not listened to
            returned = module.register_forward_hook(over, always_call=True)
        called(module)

    begin()
    return end


def _learns(module: Any) -> bool:
    """Whether there is something to train in it. Some have their own `parameters`, as groups for an optimizer."""
    from torch import nn

    return any(parameter.requires_grad for parameter in nn.Module.parameters(module))


class Calls:
    """The modules that the script calls in the step that is looked at closely, and how often each."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.often: dict[int, tuple[weakref.ref[Any], int]] = {}  # by id: some are equal to others

    def begin(self) -> Callable[[], None]:
        """Begin to count; the function that ends it. Nothing is counted where something was compiled: for the sake of
        these hooks it would be compiled again."""
        self.often.clear()
        compiled = sys.modules.get("torch._dynamo.utils")
        if compiled is not None and any(compiled.counters["frames"].values()):
            return lambda: None
        return listen(self.watch, self._count)

    def _count(self, module: Any) -> None:
        _, often = self.often.get(id(module), (None, 0))
        self.often[id(module)] = weakref.ref(module), often + 1

    def _modules(self) -> list[Any]:
        """Those of them that are still there."""
        return [module for found, _ in self.often.values() if (module := found()) is not None]

    def mark(self) -> None:
        """Ranges around the calls of these modules from now on. In the place of compiled code, for it goes into no copy
        of a module and into no file, as a hook would. Set past `__setattr__`, which may set it of a module within, too.
        Not of what DataParallel copies to other devices, with all that is set of it."""
        import torch

        if sum(often for _, often in self.often.values()) <= MOST_CALLS:
            modules = self._modules()
            several = [module for module in modules if isinstance(module, torch.nn.DataParallel)]
            copied = {id(part) for module in several for part in module.module.modules()}
            for module in modules:
                if isinstance(module, torch.jit.ScriptModule) or id(module) in copied:
                    continue
                if module._compiled_call_impl is None:
                    vars(module)["_compiled_call_impl"] = _Ranged(self.watch, module._call_impl)

    def unmark(self) -> None:
        """No ranges any more."""
        for module in self._modules():
            if isinstance(vars(module).get("_compiled_call_impl"), _Ranged):
                del vars(module)["_compiled_call_impl"]


class _Ranged:
    """A module's call, with a range, but for one in a backward pass, for want of what the forward pass has not kept:
    its thread's other kernels would be taken for what the script does beside its model. None in copies and in files, as
    of modules that have their own `__getstate__` (DistributedDataParallel, LightningModule)."""

    def __init__(self, watch: Watch, function: Callable[..., Any]) -> None:
        self.watch, self.function = watch, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with contextlib.nullcontext() if self.watch.in_backward() else self.watch.spanned("forward"):
            return self.function(*args, **kwargs)

    def __reduce__(self) -> Any:
        return type(None), ()
