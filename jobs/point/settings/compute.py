"""How the same arithmetic is run: compilers, graphs, kernels, threads and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jobs.point.settings.field import setting

GRAPHING_MODES = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that record CUDA graphs themselves."""


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Settings that change the speed of a step and not what it computes."""

    compile: Literal["none", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = setting(
        "Mode of torch.compile: of the whole network (image), or of each layer (llm, and all of fsdp2).", "none"
    )
    cuda_graph: bool = setting("Record the forward and backward pass once as a CUDA graph, and replay it.", False)
    optimizer_kernels: Literal["default", "for-loop", "foreach", "fused"] = setting(
        "How the optimizer of torch runs: as it decides (AdamW on the host, with `offload`: in one kernel), parameter "
        "by parameter, over lists of them, or in one kernel.",
        "default",
    )
    attention: Literal["auto", "eager", "math", "efficient", "flash", "cudnn"] = setting(
        "Attention of vit_s and llm models: PyTorch's scaled_dot_product_attention with the backend it picks, or with "
        "this one; eager: written out.",
        "auto",
    )
    cudnn_benchmark: bool = setting("cuDNN tries its convolutions on the first batch and keeps the fastest.", False)
    cpu_threads: int = setting(
        "Threads of an operator on the CPU (OMP_NUM_THREADS); 0: the host's default.", 0, minimum=0
    )
    allocator: Literal["default", "expandable", "async"] = setting(
        "CUDA's memory: PyTorch's allocator as it is, with expandable segments, or the driver's own (cudaMallocAsync).",
        "default",
    )
    empty_cache: bool = setting("Give cached memory back after every step: a bad habit, to see what it costs.", False)
    batch_search: bool = setting(
        "Search the largest micro_batch that fits the device's memory, and train with that; micro_batch is where the "
        "search begins.",
        False,
    )
    tenants: int = setting("Like jobs that share each GPU; the other ones are not measured.", 1, minimum=1)
    mps: bool = setting("Tenants share the GPU through CUDA's Multi-Process Service, not by turns.", False)
    numa: Literal["none", "near", "far"] = setting(
        "CPUs of a rank: as the scheduler gives them, or bound to those near its GPU, or far from it.", "none"
    )

    @property
    def records_graphs(self) -> bool:
        """Whether kernels are launched as CUDA graphs."""
        return self.cuda_graph or self.compile in GRAPHING_MODES
