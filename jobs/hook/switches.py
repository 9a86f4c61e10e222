"""Switches that are imposed on a script: settings of its libraries that its owner wants tried without editing it.

A setting that is None leaves the script as it is.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable
from typing import Any

from . import release
from .watch import Watch

Settings = dict[str, Any]


def apply(watch: Watch, settings: Settings) -> None:
    """Apply the switches, when torch has been imported and before the script uses it."""
    import torch

    random.seed(watch.seed)
    torch.manual_seed(watch.seed)
    if settings["precision"] == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if settings["cudnn_benchmark"] is not None:
        torch.backends.cudnn.benchmark = settings["cudnn_benchmark"]
    if settings["empty_cache"] is False:
        torch.cuda.empty_cache = lambda: None
    _switch_loader(settings)
    _switch_copies(settings)
    _switch_ddp(settings)
    _switch_optimizer(settings)
    _switch_model(watch, settings)


def _chosen(settings: Settings, names: dict[str, str]) -> Settings:
    """Arguments of a library by the names of the settings that choose them."""
    return {argument: settings[name] for name, argument in names.items() if settings[name] is not None}


def _switch_loader(settings: Settings) -> None:
    """Arguments of every DataLoader, and how it frees batches."""
    import torch
    from torch.utils.data import DataLoader

    names = {
        "loader_workers": "num_workers",
        "prefetch_factor": "prefetch_factor",
        "persistent_workers": "persistent_workers",
        "pin_memory": "pin_memory",
    }
    chosen = _chosen(settings, names)
    if settings["release_unlocked"]:
        release.unlock()
    if not torch.cuda.is_available():
        chosen.pop("pin_memory", None)
    if not chosen:
        return
    made: Any = DataLoader.__init__
    signature = inspect.signature(made)

    @functools.wraps(made)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        given.arguments |= chosen
        if not given.arguments.get("num_workers"):
            for name in ("prefetch_factor", "persistent_workers"):
                given.arguments.pop(name, None)
        made(*given.args, **given.kwargs)

    DataLoader.__init__ = init  # type: ignore[method-assign]


def _switch_copies(settings: Settings) -> None:
    """Copies from page-locked memory to a GPU do not wait, where the script does not say whether they do. (The other
    way the host would read what has not come yet.)"""
    import torch

    if not settings["non_blocking"]:
        return
    for name in ("to", "cuda"):
        copy = getattr(torch.Tensor, name)

        @functools.wraps(copy)
        def copying(self: Any, *args: Any, _copy: Any = copy, **kwargs: Any) -> Any:
            if self.device.type == "cpu" and "non_blocking" not in kwargs and self.is_pinned():
                kwargs["non_blocking"] = True
            return _copy(self, *args, **kwargs)

        setattr(torch.Tensor, name, copying)


def _switch_ddp(settings: Settings) -> None:
    """Arguments of DistributedDataParallel, its hook, and when it averages."""
    import torch
    from torch.nn.parallel import DistributedDataParallel as Ddp

    names = {
        "ddp_bucket_mb": "bucket_cap_mb",
        "ddp_bucket_view": "gradient_as_bucket_view",
        "ddp_static_graph": "static_graph",
    }
    chosen, hook, last = _chosen(settings, names), settings["comm_hook"], settings["layout"] == "nhwc"
    if chosen or hook or last:
        made: Any = Ddp.__init__

        @functools.wraps(made)
        def init(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            if last:  # before DDP lays out its copies of gradients, which optimizers want laid out as weights are
                _channels_last(module)
            made(self, module, *args, **{**kwargs, **chosen})
            if hook == "powersgd":
                from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

                self.register_comm_hook(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)
            elif hook:
                from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

                self.register_comm_hook(None, getattr(default_hooks, f"{hook}_compress_hook"))

        Ddp.__init__ = init  # type: ignore[method-assign]
    if settings["no_sync"]:
        _average_last(torch, Ddp)


def _average_last(torch: Any, ddp: Any) -> None:
    """Only the last backward pass of a step averages gradients: as many as the step before had."""
    passes, usual = [0], [1]
    backward, forward, wrap = torch.Tensor.backward, ddp.forward, torch.optim.Optimizer.profile_hook_step

    @functools.wraps(backward)
    def run_backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        passes[0] += 1
        return backward(self, *args, **kwargs)

    @functools.wraps(forward)
    def run_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.require_backward_grad_sync = passes[0] + 1 >= usual[0]
        return forward(self, *args, **kwargs)

    def profile_hook_step(function: Callable[..., Any]) -> Any:
        step = wrap(function)

        @functools.wraps(step)
        def stepping(*args: Any, **kwargs: Any) -> Any:
            usual[0], passes[0] = max(1, passes[0]), 0
            return step(*args, **kwargs)

        return stepping

    torch.Tensor.backward, ddp.forward = run_backward, run_forward
    torch.optim.Optimizer.profile_hook_step = staticmethod(profile_hook_step)


def _switch_optimizer(settings: Settings) -> None:
    """How an optimizer runs its arithmetic."""
    import torch

    kernels = settings["optimizer_kernels"]
    if kernels is None:
        return
    chosen: dict[str, Any] = {
        "default": {"foreach": None, "fused": None},
        "for-loop": {"foreach": False, "fused": False},
        "foreach": {"foreach": True, "fused": False},
        "fused": {"foreach": False, "fused": True},
    }
    made: Any = torch.optim.Optimizer.__init__

    @functools.wraps(made)
    def init(self: Any, params: Any, defaults: Settings) -> None:
        usable = "foreach" if kernels == "fused" and "fused" not in defaults else kernels
        own = {name: value for name, value in chosen[usable].items() if name in defaults}
        made(self, params, defaults | own)

    torch.optim.Optimizer.__init__ = init  # type: ignore[method-assign]


def _switch_model(watch: Watch, settings: Settings) -> None:
    """What concerns whole models: the modules that train and that none of the others calls, as they are called in the
    first steps. They are compiled after these, when no hook of ours is left that a compiler would see."""
    from torch.jit import ScriptModule
    from torch.nn.modules.module import register_module_forward_pre_hook

    mode = settings["compile"]
    changes = [_channels_last] if settings["layout"] == "nhwc" else []
    changes += [_autocast] if settings["precision"] == "bf16" else []
    if not changes and mode in (None, "none"):
        return
    models: list[Any] = []
    handle: Any = None

    def listen() -> None:
        nonlocal handle
        handle = register_module_forward_pre_hook(called)

    def called(module: Any, _: Any) -> None:
        if not module.training or not any(p.requires_grad for p in module.parameters()):
            return

        def over(*_: Any) -> None:
            returned.remove()
            listen()

        if not isinstance(module, ScriptModule):  # which takes no hook, and of whose parts no call is heard
            handle.remove()  # what it calls is not listened to
            returned = module.register_forward_hook(over, always_call=True)
        if not any(module is part for model in models for part in model.modules()):
            models.append(module)
            for change in changes:
                change(module)

    def compile_all() -> None:
        handle.remove()
        if mode not in (None, "none"):
            _compile([getattr(model, "module", model) for model in models], None if mode == "default" else mode)

    watch.once_known = compile_all
    listen()


def _compile(models: list[Any], mode: str | None) -> None:
    """Each layer of a model, where most of it is lists of alike ones: a kind is compiled once, and what is decided
    outside of them, as whether attention is given a mask, stays as it is. Else the whole model, as with modes that
    record CUDA graphs: of layers one by one each would overwrite what the one before gave."""
    import torch

    by_layers = mode in (None, "max-autotune-no-cudagraphs")
    modules = [module for model in models for module in ((by_layers and _layers(model)) or [model])]
    limits: Any = torch._dynamo.config  # layers share one limit; before PyTorch 2.6 it has this name alone
    limits.cache_size_limit = max(limits.cache_size_limit, 2 * len(modules))
    for module in modules:
        if isinstance(module, torch.jit.ScriptModule):
            continue  # the script has had it compiled another way
        if not type(module).forward.__module__.startswith("torch.nn."):
            module.compile(mode=mode)
        elif any(module.children()):  # of one kernel nothing is fused
            # What `compile` of a class of PyTorch's own gives is not looked into, only what calls it is.
            module._compiled_call_impl = torch.compile(_calling(module._call_impl), mode=mode)


def _calling(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)


def _layers(model: Any) -> list[Any]:
    """The modules of its outermost lists of modules that are alike in class and in the shapes of their parameters, if
    these hold most of its parameters but for tables of embeddings."""
    from torch import nn

    def size(module: Any) -> int:
        tables = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
        return sum(own.numel() for own in module.parameters() if id(own) not in tables)

    def kind(module: Any) -> Any:
        return type(module), tuple(own.shape for own in module.parameters())

    def found(module: Any) -> list[Any]:
        parts = list(module.children())
        listed = isinstance(module, (nn.ModuleList, nn.Sequential)) and len(parts) > 1
        if listed and len(set(map(kind, parts))) == 1 and any(parts[0].children()):  # of one kernel nothing is fused
            return parts
        return [layer for part in parts for layer in found(part)]

    layers = list(dict.fromkeys(found(model)))  # a layer may be in two lists
    return layers if sum(map(size, layers)) > size(model) / 2 else []


def _channels_last(module: Any) -> None:
    """Parameters, buffers and positional inputs of four dimensions (pictures) and of five (volumes), each only where a
    parameter has as many: a batch of films has five dimensions, too. `Module.to` takes one format for all."""
    import torch

    there = {parameter.dim() for parameter in module.parameters()}
    formats = {n: order for n, order in ((4, torch.channels_last), (5, torch.channels_last_3d)) if n in there}

    def arranged(value: Any) -> Any:
        order = formats.get(value.dim()) if isinstance(value, torch.Tensor) else None
        return value if order is None else value.contiguous(memory_format=order)

    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = arranged(tensor.data)
    if not isinstance(module, torch.jit.ScriptModule):  # which takes no hook
        module.register_forward_pre_hook(lambda _, args: tuple(map(arranged, args)))


def _autocast(module: Any) -> None:
    """Mixed precision of the forward pass; what comes out of it is in fp32, so that the script's loss is."""
    import torch

    forward = module.forward
    kind = next(module.parameters()).device.type

    def whole(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(kind, torch.bfloat16):
            found = forward(*args, **kwargs)
        if isinstance(found, dict):  # transformers' outputs are dictionaries of their own class
            for name in list(found):
                found[name] = whole(found[name])
            return found
        return type(found)(map(whole, found)) if type(found) in (tuple, list) else whole(found)

    module.forward = run
