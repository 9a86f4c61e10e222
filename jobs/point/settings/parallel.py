"""How the ranks share the work, and what they say to each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nightsweep.jobs.point.llama import SHAPES
from nightsweep.jobs.point.reason import Reason
from nightsweep.jobs.point.settings.field import MOST_STEPS, ON_GPU, except_for, only, setting
from nightsweep.jobs.point.strategies import DDP, FLAT, LASTING, STRATEGIES, ZERO

if TYPE_CHECKING:
    from nightsweep.jobs.point.point import Point


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """Settings of the strategy. Each is for some strategies only; jobs/point/check.py refuses it elsewhere."""

    strategy: str = setting(
        f"How ranks share the work: {'; '.join(f'{n} ({own.text})' for n, own in STRATEGIES.items())}. All but ddp "
        "shard the data; the ranks of a tp or pp group share theirs.",
        "ddp_ds",
        enum=list(STRATEGIES),
    )
    ddp_bucket_mb: int = setting(
        "Gradients that DDP averages in one go, MiB.", 25, minimum=1, maximum=1_000_000, needs=[only("strategy", *DDP)]
    )
    ddp_bucket_view: bool = setting(
        "DDP's gradient_as_bucket_view: gradients lie in the buckets, uncopied.", False, needs=[only("strategy", *DDP)]
    )
    ddp_static_graph: bool = setting(
        "Tell DDP that every step uses the same parameters in the same order.", False, needs=[only("strategy", *DDP)]
    )
    comm_hook: Literal["none", "bf16", "fp16", "powersgd", "topk"] = setting(
        "How DDP compresses gradients before it averages them: to short numbers, to factors of rank 1 (powersgd), or "
        "to the largest hundredth of each bucket (topk).",
        "none",
        needs=[only("strategy", *DDP)],
    )
    local_steps: int = setting(
        "Steps between two averages of local_sgd.",
        8,
        minimum=1,
        maximum=MOST_STEPS,
        needs=[only("strategy", "local_sgd")],
    )
    replicas: int = setting(
        "Copies of the sharded or split model, which train data parallel: fsdp2 shards each over ranks / replicas "
        "ranks (HSDP); tp and pp split each over as many.",
        1,
        minimum=1,
        maximum=10_000_000,
        needs=[only("strategy", "fsdp2", "tp", "pp")],
    )
    tensor_parallel: int = setting(
        "Ranks over which fsdp2 also splits each layer (a two-dimensional mesh).",
        1,
        minimum=1,
        maximum=10_000_000,
        needs=[only("strategy", "fsdp2")],
    )
    pipeline_schedule: Literal["gpipe", "1f1b"] = setting(
        "Order of the micro-batches (grad_accum of them) in the stages of pp.", "1f1b", needs=[only("strategy", "pp")]
    )
    reduce_dtype: Literal["fp32", "bf16"] = setting(
        "Number format in which fsdp2 adds gradients up.",
        "fp32",
        needs=[only("strategy", "fsdp2"), only("precision", "bf16", "fp16", "bf16_pure")],
    )
    reshard_after_forward: bool = setting(
        "fsdp2 drops gathered weights after the forward pass, and gathers them again for the backward pass.",
        True,
        needs=[only("strategy", "fsdp2")],
    )
    prefetch_layers: int = setting(
        "Layers whose weights fsdp2 and zero3 gather ahead of the one at work; 0: as they decide themselves.",
        0,
        minimum=0,
        maximum=1000,
        needs=[only("strategy", "fsdp2", "zero3")],
    )
    offload: Literal["none", "optimizer", "all"] = setting(
        "What fsdp2 and ZeRO keep in the host's memory: the optimizer's state and step (ZeRO), or also the weights.",
        "none",
        needs=[only("strategy", *FLAT)],
    )
    zero_communication: Literal["default", "overlapped", "serial"] = setting(
        "Whether ZeRO communicates beside the backward pass (DeepSpeed's overlap_comm); default: as DeepSpeed decides, "
        "which is only in stage 3.",
        "default",
        needs=[only("strategy", *ZERO)],
    )
    zero_messages: Literal["joined", "single_gathers", "single"] = setting(
        "Whether zero3 joins the weights of a layer, and its gradients, into one message, which copies them once more "
        "(as DeepSpeed does), gathers each weight as it is, or also sums up each large gradient as it is.",
        "joined",
        needs=[only("strategy", "zero3")],
    )
    zero_bucket_millions: int = setting(
        "Millions of gradients' elements that ZeRO sums up at once; 0: as DeepSpeed decides, 500.",
        0,
        minimum=0,
        maximum=100_000,
        needs=[only("strategy", *ZERO), except_for("zero_messages", "single")],
    )
    nccl_transport: Literal["auto", "shm", "sockets"] = setting(
        "What NCCL may send over: as it decides (NVLink first); shm: no direct access from GPU to GPU, so that ranks "
        "of a host exchange over PCIe through the host's memory; sockets: TCP alone, within a host too, and no "
        "InfiniBand.",
        "auto",
        needs=[ON_GPU],
    )
    nccl_algo: Literal["auto", "ring", "tree"] = setting(
        "Algorithm of NCCL's all-reduce (NCCL 2.24 on).", "auto", needs=[ON_GPU, only("strategy", *LASTING, "tp")]
    )
    nccl_proto: Literal["auto", "ll", "simple"] = setting(
        "NCCL's protocol: for latency or for bandwidth. LL128 is not safe on every link: auto.", "auto", needs=[ON_GPU]
    )
    nccl_ctas: int = setting(
        "Largest number of thread blocks of an NCCL kernel; each block takes an SM from the kernels beside it. 0: NCCL "
        "decides.",
        0,
        minimum=0,
        maximum=64,
        needs=[ON_GPU],
    )


LAYERS = {name: shape.num_hidden_layers for name, shape in SHAPES.items()} | {"vit_s": 12}
"""Of the models that can be split."""


def zero_conflicts(p: Point) -> Iterator[Reason]:
    if p.strategy in ZERO and p.precision == "fp64":
        text = f"{p.strategy} with fp64: DeepSpeed trains in fp32, bf16 and fp16 only"
        yield Reason(("strategy", "precision"), text)
    if p.strategy in ZERO and p.precision == "bf16_pure" and p.offload != "none":
        text = f"{p.strategy} offloads bf16 weights to an optimizer of DeepSpeed's alone, which must be compiled"
        yield Reason(("offload", "strategy", "precision"), text)


def split_conflicts(p: Point) -> Iterator[Reason]:
    """Of settings that have ranks share one model."""
    if p.strategy in ("tp", "pp"):
        split, splitter = "strategy", p.strategy
    elif p.strategy == "fsdp2" and p.tensor_parallel > 1:
        split, splitter = "tensor_parallel", f"tensor_parallel {p.tensor_parallel}"
    else:
        return
    if p.precision == "fp16":
        text = f"fp16 with {splitter}: gradients may overflow on some ranks of a model, unseen by the others"
        yield Reason((split, "precision"), text)
    if p.workload == "image" and (p.strategy != "pp" or p.model != "vit_s"):
        able = "llama models and vit_s" if p.strategy == "pp" else "llama models"
        yield Reason((split, "model"), f"{splitter} splits {able}, not {p.model}")
    if p.method not in (None, "full"):
        yield Reason((split, "method"), f"{splitter} splits whole models only; method is {p.method}")
    given = [name for name, usual in (("float8", "none"), ("loss_chunks", 0)) if getattr(p, name) not in (None, usual)]
    if given:
        text = f"{splitter} with {given[0]} {getattr(p, given[0])}: split layers use their own matrix products"
        yield Reason((given[0], split), text)
    ranks, shape = p.ranks_per_batch, SHAPES.get(p.model)
    if p.strategy != "pp" and shape and ranks > 1 and (heads := shape.num_key_value_heads) % ranks:
        names = ("ranks_per_node", "nodes", "replicas") if p.strategy == "tp" else ("tensor_parallel",)
        yield Reason((*names, "model"), f"{ranks} ranks cannot share the {heads} key/value heads of {p.model} evenly")


def group_conflicts(p: Point) -> Iterator[Reason]:
    of_one = p.replicas * (p.tensor_parallel if p.strategy == "fsdp2" else 1)
    if of_one > 1 and p.world_size % of_one:
        names = [name for name in ("replicas", "tensor_parallel") if getattr(p, name) > 1]
        product = " x ".join(f"{name} {getattr(p, name)}" for name in names)
        yield Reason((*names, "ranks_per_node", "nodes"), f"{p.world_size} ranks cannot be divided into {product}")
    elif p.strategy in ("tp", "pp") and p.ranks_per_batch < 2:
        text = f"{p.strategy} has one rank for a model: there is nothing to split"
        yield Reason(("strategy", "ranks_per_node", "nodes", "replicas"), text)


def pipeline_conflicts(p: Point) -> Iterator[Reason]:
    if p.strategy != "pp":
        return
    count, layers = p.ranks_per_batch, LAYERS.get(p.model)
    if layers and layers < count:
        yield Reason(("ranks_per_node", "nodes", "model"), f"{p.model} has {layers} layers for {count} stages")
    elif p.pipeline_schedule == "1f1b" and p.grad_accum < count:
        text = f"{p.grad_accum} micro-batches are fewer than the {count} stages that 1f1b must fill"
        yield Reason(("grad_accum", "ranks_per_node", "nodes", "pipeline_schedule"), text)
    if p.sequences not in (None, "windows"):
        text = f"pp hands hidden states on, and not which of {p.sequences} sequences they are of"
        yield Reason(("strategy", "sequences"), text)


def dp_conflicts(p: Point) -> Iterator[Reason]:
    if p.strategy != "dp":
        return
    if p.cudnn_benchmark:
        text = "dp runs each pass in new threads, and cuDNN's trials are a thread's own: every step would repeat them"
        yield Reason(("cudnn_benchmark", "strategy"), text)
    elif p.nodes > 1:
        yield Reason(("nodes", "strategy"), f"dp is one process on one node; nodes is {p.nodes}")
    elif p.device == "cpu" and p.ranks_per_node > 1:
        yield Reason(("ranks_per_node", "strategy"), f"dp splits batches over GPUs, not over {p.ranks_per_node} CPUs")


def offload_conflicts(p: Point) -> Iterator[Reason]:
    if p.strategy == "fsdp2" and p.offload == "optimizer":
        yield Reason(("offload", "strategy"), "fsdp2 offloads the optimizer with the weights only (offload all)")
    if p.strategy in ("zero1", "zero2") and p.offload == "all":
        yield Reason(("offload", "strategy"), f"{p.strategy} keeps weights on the GPU; zero3 offloads them")
    if p.strategy == "fsdp2" and p.offload == "all" and p.precision == "fp16":
        text = "fsdp2 offloads gradients; fp16's loss scaling looks at them on the GPU"
        yield Reason(("offload", "precision"), text)


def ddp_conflicts(p: Point) -> Iterator[Reason]:
    if p.ddp_static_graph and p.grad_accum > 1:
        text = "DDP's static graph takes every micro-batch to communicate, and only a step's last one does"
        yield Reason(("ddp_static_graph", "grad_accum"), text)
    if p.comm_hook == "bf16" and p.precision == "bf16_pure":
        yield Reason(("comm_hook", "precision"), "comm_hook bf16 has no effect: gradients of bf16_pure are bf16")
    elif p.comm_hook == "bf16" and p.device == "cpu":
        yield Reason(("comm_hook", "device"), "DDP sends bf16 between GPUs only; device is cpu")
    if p.comm_hook == "topk" and p.precision == "fp16":
        text = "comm_hook topk would carry gradients that overflow in fp16 into every later step"
        yield Reason(("comm_hook", "precision"), text)


CHECKS = (
    zero_conflicts,
    split_conflicts,
    group_conflicts,
    pipeline_conflicts,
    dp_conflicts,
    offload_conflicts,
    ddp_conflicts,
)
