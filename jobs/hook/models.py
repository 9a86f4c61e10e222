"""What switches change of whole models: how they are compiled, their precision and the layout of their pictures."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from .forward import listen
from .watch import Watch

GRAPHS = ("reduce-overhead", "max-autotune")
"""The compiler's modes that record CUDA graphs: GRAPHING_MODES of jobs/point/settings/compute.py, which a script's
Python may not be able to import."""


def switch(watch: Watch, settings: dict[str, Any], laid_out: Callable[[], None]) -> None:
    """What concerns whole models: the modules with something to train that the script itself calls, in the first steps,
    where gradients are recorded: also in evaluation mode, as a pretrained model is at first; those with parameters
    that only their first call makes (LazyLinear), with their second. They are compiled after these, when no hook of
    ours is left that a compiler would see. `laid_out` is called where a layout has an effect."""
    import torch
    from torch.nn.parameter import is_lazy

    mode = settings["compile"]
    changes: list[Callable[[Any], None]] = []
    if settings["layout"] == "nhwc":
        changes.append(functools.partial(channels_last, laid_out=laid_out))
    if settings["precision"] == "bf16":
        changes.append(_autocast)
    if not changes and mode in (None, "none"):
        return
    models: list[Any] = []

    def called(module: Any) -> None:
        known = any(module is own for own in models)  # some are equal to others
        if not known and not any(map(is_lazy, (*module.parameters(), *module.buffers()))):
            models.append(module)
            for change in changes:
                change(module)

    end = listen(watch, called)

    def compile_all() -> None:
        end()
        if mode not in (None, "none"):
            # What is compiled of a model on several devices at once would have the weights of the first for all.
            alone = [model for model in models if len(getattr(model, "device_ids", None) or ()) < 2]
            _compile([getattr(model, "module", model) for model in alone], None if mode == "default" else mode)
            if mode in GRAPHS:
                # Else what a graph gives lasts until the next call after a backward pass: scripts that call a model
                # again in a step, as of two networks against each other, would end with an error. Nor until the first
                # of two optimizers has stepped, for the second may need what was given before.
                watch.begin_graphs = torch.compiler.cudagraph_mark_step_begin
                watch.begin_graphs()

    watch.once_known.append(compile_all)


def _compile(models: list[Any], mode: str | None) -> None:
    """Each layer of a model, where most of it is lists of alike ones: a kind is compiled once, and what is decided
    outside of them, as whether attention is given a mask, stays as it is. Else the whole model, as with modes that
    record CUDA graphs: of layers one by one each would overwrite what the one before gave."""
    import torch

    modules = [module for model in models for module in ((mode not in GRAPHS and _layers(model)) or [model])]
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


def weights_layout(parameters: Iterable[Any]) -> str | None:
    """How most of the weights of convolutions of pictures and volumes lie: "nchw", "nhwc", or "none" where there are no
    such. None: all parameters have one dimension, as those that are sharded as one."""
    import torch

    sizes, dimensions = {"nchw": 0, "nhwc": 0}, {0}
    for own in parameters:
        dimensions.add(own.dim())
        if own.dim() in (4, 5) and own.layout == torch.strided:
            last = torch.channels_last if own.dim() == 4 else torch.channels_last_3d
            nhwc = own.is_contiguous(memory_format=last)
            if nhwc != own.is_contiguous():  # else it is of one pixel, and lies both ways
                sizes["nhwc" if nhwc else "nchw"] += own.numel()
    if not dimensions & {4, 5}:
        return "none" if max(dimensions) > 1 else None
    return "nhwc" if sizes["nhwc"] > sizes["nchw"] else "nchw"


def channels_last(module: Any, laid_out: Callable[[], None]) -> None:
    """Parameters, buffers and inputs of four dimensions (pictures) and of five (volumes), each only where a parameter
    has as many: a batch of films has five dimensions, too. `Module.to` takes one format for all. `laid_out` is called
    where they did not lie so before."""
    import torch

    if weights_layout(module.parameters()) == "nchw":
        laid_out()
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


def _arrange_inputs(dimensions: set[int], _: Any, args: Any, kwargs: dict[str, Any]) -> Any:
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
