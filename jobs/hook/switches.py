"""Switches that are imposed on a script: settings of its libraries that its owner wants tried without editing it.

A setting that is None leaves the script as it is.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
from typing import Any

from ..record import notes
from . import averaging, models, release
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
    if settings["empty_cache"] is False:
        for name in ("cuda", "accelerator"):  # PyTorch 2.9 has the second one, too
            if hasattr(getattr(torch, name, None), "empty_cache"):
                getattr(torch, name).empty_cache = lambda: _used(watch, "empty_cache")
    _switch_loader(watch, settings)
    _switch_copies(watch, settings)
    _switch_ddp(watch, settings)
    _switch_optimizer(watch, settings)
    models.switch(watch, settings, functools.partial(_used, watch, "layout"))
    _switch_backends(watch, settings)


def _switch_backends(watch: Watch, settings: Settings) -> None:
    """Now, and again when the first step is over: a script may set it otherwise as it begins."""
    import torch

    chosen: list[tuple[Any, str, bool]] = []
    if settings["precision"] == "tf32":
        chosen += [(torch.backends.cuda.matmul, "allow_tf32", True), (torch.backends.cudnn, "allow_tf32", True)]
    if settings["cudnn_benchmark"] is not None:
        chosen.append((torch.backends.cudnn, "benchmark", settings["cudnn_benchmark"]))

    def choose() -> None:
        for backend, name, value in chosen:
            setattr(backend, name, value)

    choose()
    if chosen:
        watch.once_known.append(choose)


def _idle(name: str) -> str:
    return f"{notes.without_effect(name)}: the script did nothing that it applies to"


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
    """Copies to a GPU go through page-locked memory, and those from such memory do not wait. (The other way the host
    would read what has not come yet.) Many a library passes `non_blocking=False` on where nobody chose it; by its place
    hardly anyone does. What is copied before the first step may be a whole data set, and such memory is never given
    back."""
    import torch

    pin, ahead = settings["pin_memory"], settings["non_blocking"]
    if not (pin or ahead):
        return
    for name in ("to", "cuda"):
        copy = getattr(torch.Tensor, name)

        @functools.wraps(copy)
        def copying(self: Any, *args: Any, _copy: Any = copy, **kwargs: Any) -> Any:
            if self.device.type != "cpu" or (_copy.__name__ == "to" and _target(args, kwargs) != "cuda"):
                return _copy(self, *args, **kwargs)
            with contextlib.suppress(RuntimeError):  # there is no such memory left, or torch.vmap knows of none
                if pin and watch.current is not None and _is_batch(self):
                    self = self.pin_memory()
                    _used(watch, "pin_memory")
                if ahead and not any(isinstance(given, bool) for given in args) and self.is_pinned():
                    kwargs = {**kwargs, "non_blocking": True}
                    _used(watch, "non_blocking")
            return _copy(self, *args, **kwargs)

        setattr(torch.Tensor, name, copying)


STAGED_ITSELF = 64 << 10
"""Bytes that CUDA takes from pageable memory without a wait (CUDA Runtime API, synchronization behavior)."""


def _is_batch(tensor: Any) -> bool:
    """Whether it is worth a copy into page-locked memory, and such a copy is like it."""
    import torch

    if type(tensor) is not torch.Tensor or tensor.requires_grad or tensor.layout != torch.strided:
        return False
    return tensor.nbytes > STAGED_ITSELF and tensor.is_contiguous() and not tensor.is_pinned()


def _target(args: Any, kwargs: Settings) -> str | None:
    """The kind of device that these arguments of `Tensor.to` name."""
    import torch

    given = kwargs.get("device", kwargs.get("other", args[0] if args else None))
    if isinstance(given, torch.Tensor):
        return given.device.type
    if isinstance(given, (str, torch.device)):
        return torch.device(given).type
    return "cuda" if isinstance(given, int) else None


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
                models.channels_last(given.arguments["module"], functools.partial(_used, watch, "layout"))
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
