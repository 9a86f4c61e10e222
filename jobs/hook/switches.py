"""Switches that are imposed on a script: settings of its libraries that its owner wants tried without editing it.

A setting that is None leaves the script as it is.
"""

from __future__ import annotations

import functools
import inspect
import random
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

from . import averaging, release
from .watch import Watch

Settings = dict[str, Any]

FOUND_LATER = (
    "layout", "optimizer_kernels", "empty_cache", "loader_workers", "prefetch_factor", "persistent_workers",
    "pin_memory", "non_blocking", "ddp_bucket_mb", "ddp_bucket_view", "ddp_static_graph", "comm_hook", "no_sync",
)  # fmt: skip
"""Switches that wait for something of the script's; those of outcome.py's `without_effect` are seen at its end."""


def apply(watch: Watch, settings: Settings) -> None:
    """Apply the switches, when torch has been imported and before the script uses it."""
    import torch

    watch.notes += [_idle(name) for name in FOUND_LATER if settings[name] is not None]
    random.seed(watch.seed)
    torch.manual_seed(watch.seed)
    if settings["precision"] == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if settings["cudnn_benchmark"] is not None:
        torch.backends.cudnn.benchmark = settings["cudnn_benchmark"]
    if settings["empty_cache"] is False:
        for name in ("cuda", "accelerator"):  # PyTorch 2.9 has the second one, too
            if hasattr(getattr(torch, name, None), "empty_cache"):
                getattr(torch, name).empty_cache = lambda: _used(watch, "empty_cache")
    _switch_loader(watch, settings)
    _switch_copies(watch, settings)
    _switch_ddp(watch, settings)
    _switch_optimizer(watch, settings)
    _switch_model(watch, settings)


def _idle(name: str) -> str:
    return f"the switch {name} had no effect: the script did nothing that it applies to"


def _used(watch: Watch, *names: str) -> None:
    """These switches had an effect: what was to be said of them, should they have none, is not said."""
    for name in names:
        if _idle(name) in watch.notes:
            watch.notes.remove(_idle(name))


def _chosen(settings: Settings, names: dict[str, str]) -> Settings:
    """Arguments of a library by the names of the settings that choose them."""
    return {argument: settings[name] for name, argument in names.items() if settings[name] is not None}


def _switch_loader(watch: Watch, settings: Settings) -> None:
    """Arguments of every DataLoader, and how it frees batches."""
    from torch.utils.data import DataLoader, IterableDataset

    names = {
        "loader_workers": "num_workers",
        "prefetch_factor": "prefetch_factor",
        "persistent_workers": "persistent_workers",
        "pin_memory": "pin_memory",
    }
    chosen = _chosen(settings, names)
    if settings["release_unlocked"]:
        release.unlock()
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
        _used(watch, *(name for name, argument in names.items() if argument in given.arguments))
        if isinstance(given.arguments["dataset"], IterableDataset) and chosen.get("num_workers", 0) > 1:
            watch.notes.append(
                "loader_workers: each worker reads all of an IterableDataset that does not ask which it is"
            )
        made(*given.args, **given.kwargs)

    DataLoader.__init__ = init  # type: ignore[method-assign]


def _switch_copies(watch: Watch, settings: Settings) -> None:
    """Copies from page-locked memory to a GPU do not wait. (The other way the host would read what has not come yet.)
    Many a library passes `non_blocking=False` on where nobody chose it; by its place hardly anyone does."""
    import torch

    if not settings["non_blocking"]:
        return
    for name in ("to", "cuda"):
        copy = getattr(torch.Tensor, name)

        @functools.wraps(copy)
        def copying(self: Any, *args: Any, _copy: Any = copy, **kwargs: Any) -> Any:
            if self.device.type != "cpu" or any(isinstance(given, bool) for given in args) or not self.is_pinned():
                return _copy(self, *args, **kwargs)
            found = _copy(self, *args, **{**kwargs, "non_blocking": True})
            if found.device != self.device:
                _used(watch, "non_blocking")
            return found

        setattr(torch.Tensor, name, copying)


def _switch_ddp(watch: Watch, settings: Settings) -> None:
    """Arguments of DistributedDataParallel, its hook, and when it averages."""
    from torch.nn.parallel import DistributedDataParallel as Ddp

    names = {
        "ddp_bucket_mb": "bucket_cap_mb",
        "ddp_bucket_view": "gradient_as_bucket_view",
        "ddp_static_graph": "static_graph",
    }
    chosen, hook, last = _chosen(settings, names), settings["comm_hook"], settings["layout"] == "nhwc"
    if chosen or hook or last:
        made: Any = Ddp.__init__
        signature = inspect.signature(made)

        @functools.wraps(made)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            given = signature.bind(self, *args, **kwargs)
            given.arguments |= chosen
            if last:  # before DDP lays out its copies of gradients, which optimizers want laid out as weights are
                _channels_last(given.arguments["module"])
            made(*given.args, **given.kwargs)
            _used(watch, "comm_hook", *(name for name, argument in names.items() if argument in chosen))
            if hook == "powersgd":
                from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

                self.register_comm_hook(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)
            elif hook:
                from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

                self.register_comm_hook(None, getattr(default_hooks, f"{hook}_compress_hook"))

        Ddp.__init__ = init  # type: ignore[method-assign]
    if settings["no_sync"]:
        averaging.average_last(functools.partial(_used, watch, "no_sync"))


def _switch_optimizer(watch: Watch, settings: Settings) -> None:
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
    load = torch.optim.Optimizer.load_state_dict

    def own(defaults: Settings) -> Settings:
        usable = "foreach" if kernels == "fused" and "fused" not in defaults else kernels
        return {name: value for name, value in chosen[usable].items() if name in defaults}

    @functools.wraps(made)
    def init(self: Any, params: Any, defaults: Settings) -> None:
        if own(defaults):
            _used(watch, "optimizer_kernels")
        made(self, params, defaults | own(defaults))

    @functools.wraps(load)
    def load_state_dict(self: Any, state_dict: Settings) -> None:  # a checkpoint has the kernels that it was made with
        groups = [{**group, **own(self.defaults)} for group in state_dict["param_groups"]]
        load(self, {**state_dict, "param_groups": groups})

    torch.optim.Optimizer.__init__ = init  # type: ignore[method-assign]
    torch.optim.Optimizer.load_state_dict = load_state_dict  # type: ignore[method-assign]


def _switch_model(watch: Watch, settings: Settings) -> None:
    """What concerns whole models: the modules with something to train that the script itself calls, in the first steps,
    where gradients are recorded: also in evaluation mode, as a pretrained model is at first. They are compiled after
    these, when no hook of ours is left that a compiler would see."""
    import torch
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
        # What a backward pass calls again, for want of what the forward pass has not kept, is a part of a model.
        if watch.in_backward() or not torch.is_grad_enabled():
            return
        if not any(p.requires_grad for p in module.parameters()):
            return

        def over(*_: Any) -> None:
            returned.remove()
            listen()

        if not isinstance(module, torch.jit.ScriptModule):  # which takes no hook, and of whose parts no call is heard
            handle.remove()  # what it calls is not listened to
            returned = module.register_forward_hook(over, always_call=True)
        if module not in models:
            models.append(module)
            for change in changes:
                change(module)
            if any(parameter.dim() in (4, 5) for parameter in module.parameters()):
                _used(watch, "layout")

    def compile_all() -> None:
        handle.remove()
        if mode not in (None, "none"):
            # What is compiled of a model on several devices at once would have the weights of the first for all.
            alone = [model for model in models if len(getattr(model, "device_ids", None) or ()) < 2]
            _compile([getattr(model, "module", model) for model in alone], None if mode == "default" else mode)

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
    """Parameters, buffers and inputs of four dimensions (pictures) and of five (volumes), each only where a parameter
    has as many: a batch of films has five dimensions, too. `Module.to` takes one format for all."""
    import torch

    arranged = {parameter.dim() for parameter in module.parameters()} & {4, 5}
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = _arranged(arranged, tensor.data)
    if not isinstance(module, torch.jit.ScriptModule):  # which takes no hook
        module.register_forward_pre_hook(functools.partial(_arrange_inputs, arranged), with_kwargs=True)


def _arranged(dimensions: set[int], value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor) or value.dim() not in dimensions:
        return value
    return value.contiguous(memory_format=torch.channels_last if value.dim() == 4 else torch.channels_last_3d)


def _arrange_inputs(dimensions: set[int], _: Any, args: Any, kwargs: Settings) -> Any:
    arrange = functools.partial(_arranged, dimensions)
    return tuple(map(arrange, args)), {name: arrange(value) for name, value in kwargs.items()}


def _autocast(module: Any) -> None:
    """Mixed precision of the forward pass; what comes out of it is in fp32, so that the script's loss is. A method of
    the module's, so that a copy of the module has one of the copy's."""
    import torch

    given = module.forward
    own = getattr(given, "__self__", None) is module
    forward = given.__func__ if own else lambda _, *args, **kwargs: given(*args, **kwargs)
    kind = next(module.parameters()).device.type

    @functools.wraps(forward)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(kind, torch.bfloat16):
            found = forward(self, *args, **kwargs)
        return _whole(found)

    module.forward = types.MethodType(run, module)


def _whole(value: Any) -> Any:
    """The same with its tensors in fp32."""
    if isinstance(value, dict):  # transformers' outputs are dictionaries of their own class, and dataclasses, too
        for name in list(value):
            value[name] = _whole(value[name])
    elif is_dataclass(value):
        for each in fields(value):
            object.__setattr__(value, each.name, _whole(getattr(value, each.name)))
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_whole, value))
    elif type(value) in (tuple, list):
        return type(value)(map(_whole, value))
    elif hasattr(value, "is_floating_point") and value.is_floating_point():
        return value.float()
    return value
