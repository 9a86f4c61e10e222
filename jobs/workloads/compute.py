"""Settings of jobs/point/settings/compute.py: compilers, kernels of attention and convolution, threads and memory."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.point.settings.compute import GRAPHING_MODES
from nightsweep.jobs.workloads import compile_cache

if TYPE_CHECKING:
    from nightsweep.jobs.workloads.base import Work


def set_kernels(point: Point) -> None:
    """Process-wide: where compiled code is kept, and cuDNN's choice of convolutions."""
    import torch

    compile_cache.use(point)
    torch.backends.cudnn.benchmark = point.cudnn_benchmark


def attention(point: Point) -> AbstractContextManager[Any]:
    """The context in which scaled_dot_product_attention takes the point's backend. It must last for backward passes
    too, which may compute layers again."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {
        "math": SDPBackend.MATH,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
    }
    return sdpa_kernel(backends[point.attention]) if point.attention in backends else nullcontext()


def write_attention_out(point: Point, work: Work) -> None:
    """Have attention computed by plain products and a softmax, where the point asks for it."""
    from transformers import PreTrainedModel

    if point.attention == "eager":
        for module in work.model.modules():
            if isinstance(module, PreTrainedModel):
                module.set_attn_implementation("eager")


def compile_model(point: Point, work: Work) -> None:
    """torch.compile of each layer or of the whole network, in place. What strategies hang onto modules stays outside:
    `forward` alone is compiled."""
    import torch

    if point.compile == "none":
        return
    # FSDP2 and ZeRO-3 gather weights between layers.
    whole = point.workload == "image" and point.strategy not in ("fsdp2", "zero3")
    modules = (work.model,) if whole else work.layers
    # Layers of different shapes share the code of a forward: it is compiled for each, in training and in evaluation.
    limits: Any = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, 2 * len(modules))
    for module in modules:
        compiled: Any = torch.compile(module.forward, mode=point.compile, dynamic=False)
        module.forward = compiled  # type: ignore[method-assign]
    if point.compile in GRAPHING_MODES:
        # Else a micro-batch's outputs could be taken for still wanted by the next.
        work.model.register_forward_pre_hook(lambda *_: torch.compiler.cudagraph_mark_step_begin())
