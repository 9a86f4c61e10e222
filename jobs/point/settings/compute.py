"""How the same arithmetic is run: compilers, graphs, kernels, threads and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nightsweep.jobs.point.llama import SHAPES
from nightsweep.jobs.point.reason import Reason
from nightsweep.jobs.point.settings.field import ON_GPU, except_for, only, setting
from nightsweep.jobs.point.settings.llm import ADAPTERS
from nightsweep.jobs.point.strategies import LASTING

if TYPE_CHECKING:
    from nightsweep.jobs.point.point import Point

GRAPHING_MODES = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that record CUDA graphs themselves."""


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Settings that change the speed of a step and not what it computes."""

    compile: Literal["none", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = setting(
        "Mode of torch.compile: of the whole network (image), or of each layer (llm, and all of fsdp2; a script's "
        "where most of its model is lists of alike layers).",
        "none",
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
    cudnn_benchmark: bool = setting(
        "cuDNN tries its convolutions on the first batch and keeps the fastest.",
        False,
        needs=[ON_GPU, only("workload", "image", "command")],
    )
    cpu_threads: int = setting(
        "Threads of an operator on the CPU (OMP_NUM_THREADS); 0: the host's default.", 0, minimum=0, maximum=4096
    )
    allocator: Literal["default", "expandable", "async"] = setting(
        "CUDA's memory: PyTorch's allocator as it is, with expandable segments, or the driver's own (cudaMallocAsync).",
        "default",
        needs=[ON_GPU],
    )
    empty_cache: bool = setting(
        "Give cached memory back after every step: a bad habit, to see what it costs.", False, needs=[ON_GPU]
    )
    batch_search: bool = setting(
        "Search the largest micro_batch that fits the device's memory, and train with that; micro_batch is where the "
        "search begins.",
        False,
    )
    tenants: int = setting("Like jobs that share each GPU; the other ones are not measured.", 1, minimum=1, maximum=64)
    mps: bool = setting(
        "Tenants share the GPU through CUDA's Multi-Process Service, not by turns.",
        False,
        needs=[ON_GPU, except_for("tenants", 1)],
    )
    numa: Literal["none", "near", "far"] = setting(
        "CPUs of a rank: its GPU's share of the host's, the same on one GPU and on several; or all of the job's near "
        "its GPU, or far from it.",
        "none",
    )

    @property
    def records_graphs(self) -> bool:
        """Whether kernels are launched as CUDA graphs."""
        return self.cuda_graph or self.compile in GRAPHING_MODES


SHORT_FORMATS = ("bf16", "fp16", "bf16_pure")


def compile_conflicts(p: Point) -> Iterator[Reason]:
    graphs = p.compile in GRAPHING_MODES
    if p.compile != "none" and p.strategy == "dp":
        yield Reason(("compile", "strategy"), "dp runs copies of the model in threads, which torch.compile cannot")
    elif p.compile != "none" and p.strategy == "zero3" and p.method in ADAPTERS:
        text = f"zero3 needs a gradient at each compiled layer's input; method {p.method} freezes what is before them"
        yield Reason(("compile", "strategy", "method"), text)
    elif graphs and p.strategy not in LASTING:
        text = f"compile {p.compile} records CUDA graphs, and {p.strategy} moves weights or launches between them"
        yield Reason(("compile", "strategy"), text)
    if graphs and p.device == "cpu":
        yield Reason(("compile", "device"), f"compile {p.compile} records CUDA graphs; device is cpu")
    elif graphs and p.workload == "llm":
        text = f"compile {p.compile} records CUDA graphs, which layers compiled one by one overwrite (try cuda_graph)"
        yield Reason(("compile", "workload"), text)
    elif graphs and p.allocator == "async":
        yield Reason(("compile", "allocator"), f"compile {p.compile} needs PyTorch's own allocator")


def graph_conflicts(p: Point) -> Iterator[Reason]:
    if not p.cuda_graph:
        return
    if p.device == "cpu":
        yield Reason(("cuda_graph", "device"), "CUDA graphs are recorded on GPUs; device is cpu")
    elif p.strategy not in LASTING:
        yield Reason(("cuda_graph", "strategy"), f"cuda_graph needs {', '.join(LASTING)}, not {p.strategy}")
    elif p.compile in GRAPHING_MODES:
        yield Reason(("cuda_graph", "compile"), f"compile {p.compile} records its own CUDA graphs")
    if p.comm_hook != "none":
        yield Reason(("cuda_graph", "comm_hook"), f"comm_hook {p.comm_hook} runs on the host in every step")
    elif p.activation_checkpointing:
        text = "activation checkpointing asks for the random state, which a recorded pass cannot"
        yield Reason(("cuda_graph", "activation_checkpointing"), text)
    elif p.sequences not in (None, "windows"):
        yield Reason(("cuda_graph", "sequences"), f"masks of {p.sequences} sequences are looked at on the host")


def optimizer_conflicts(p: Point) -> Iterator[Reason]:
    if p.optimizer_kernels == "fused" and p.optimizer == "sgd" and p.strategy in ("fsdp2", "tp"):
        text = f"torch's fused SGD does not take the split tensors of {p.strategy}"
        yield Reason(("optimizer_kernels", "optimizer", "strategy"), text)


def attention_conflicts(p: Point) -> Iterator[Reason]:
    gpu, shape = p.device != "cpu", SHAPES.get(p.model)
    if p.attention != "auto" and p.workload == "image" and p.model != "vit_s":
        yield Reason(("attention", "model"), f"attention {p.attention} has no effect: {p.model} has no attention")
    if p.attention in ("flash", "cudnn") and gpu and p.precision not in SHORT_FORMATS:
        yield Reason(("attention", "precision"), f"{p.attention} attention is for bf16 and fp16, not {p.precision}")
    if p.attention == "efficient" and gpu and p.precision == "fp64":
        yield Reason(("attention", "precision"), "efficient attention is for fp32, bf16 and fp16, not fp64")
    if p.attention in ("efficient", "cudnn") and not gpu:
        yield Reason(("attention", "device"), f"{p.attention} attention is for GPUs; device is cpu")
    if p.attention == "efficient" and shape and shape.num_attention_heads != shape.num_key_value_heads:
        text = f"efficient attention does not share key/value heads, as {p.model} does"
        yield Reason(("attention", "model"), text)


def memory_conflicts(p: Point) -> Iterator[Reason]:
    if p.tenants > 1 and p.nodes > 1:
        yield Reason(("tenants", "nodes"), f"{p.tenants} tenants share the GPUs of one node; nodes is {p.nodes}")
    elif p.tenants > 1 and p.device == "cpu":
        yield Reason(("tenants", "device"), f"{p.tenants} tenants share a GPU; device is cpu")
    if p.batch_search and p.device == "cpu":
        yield Reason(("batch_search", "device"), "batch_search fills a GPU's memory; device is cpu")


CHECKS = (compile_conflicts, graph_conflicts, optimizer_conflicts, attention_conflicts, memory_conflicts)
