"""How the ranks share the work, and what they say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jobs.point.settings.field import setting

Strategy = Literal["ddp", "ddp_ds", "fsdp2", "zero1", "zero2", "zero3", "dp", "local_sgd", "tp", "pp"]
FLAT = ("fsdp2", "zero1", "zero2", "zero3")
"""Strategies that hold a rank's weights, or its part of them, in flat pieces."""


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """Settings of the strategy. Each is for some strategies only; jobs/point/constraints refuses it elsewhere."""

    strategy: Strategy = setting(
        "How ranks share the work: ddp (each rank walks the whole data set), ddp_ds (DDP with DistributedSampler), "
        "fsdp2, DeepSpeed ZeRO stages, dp (one process drives all GPUs of the node with DataParallel), local_sgd "
        "(ranks train apart and average their weights now and then), tp (each layer is split over the ranks), pp (the "
        "layers are). All but ddp shard the data; the ranks of a tp or pp group share theirs.",
        "ddp_ds",
    )
    ddp_bucket_mb: int = setting("Gradients that DDP averages in one go, MiB.", 25, minimum=1)
    ddp_bucket_view: bool = setting("DDP's gradient_as_bucket_view: gradients lie in the buckets, uncopied.", False)
    ddp_static_graph: bool = setting("Tell DDP that every step uses the same parameters in the same order.", False)
    comm_hook: Literal["none", "bf16", "fp16", "powersgd"] = setting(
        "How DDP compresses gradients before it averages them.", "none"
    )
    local_steps: int = setting("Steps between two averages of local_sgd.", 8, minimum=1)
    replicas: int = setting(
        "Copies of the sharded or split model: fsdp2 shards over ranks / replicas of them (HSDP); tp and pp split over "
        "so many, and the copies are data parallel.",
        1,
        minimum=1,
    )
    tensor_parallel: int = setting(
        "Ranks over which fsdp2 also splits each layer (a two-dimensional mesh).", 1, minimum=1
    )
    pipeline_schedule: Literal["gpipe", "1f1b"] = setting(
        "Order of the micro-batches (grad_accum of them) in the stages of pp.", "1f1b"
    )
    reduce_dtype: Literal["fp32", "bf16"] = setting("Number format in which fsdp2 adds gradients up.", "fp32")
    reshard_after_forward: bool = setting(
        "fsdp2 drops gathered weights after the forward pass, and gathers them again for the backward pass.", True
    )
    prefetch_layers: int = setting(
        "Layers whose weights fsdp2 and zero3 gather ahead of the one at work; 0: as they decide themselves.",
        0,
        minimum=0,
    )
    offload: Literal["none", "optimizer", "all"] = setting(
        "What fsdp2 and ZeRO keep in the host's memory: the optimizer's state and step (ZeRO), or also the weights.",
        "none",
    )
    zero_communication: Literal["default", "overlapped", "serial"] = setting(
        "Whether ZeRO communicates beside the backward pass (DeepSpeed's overlap_comm); default: as DeepSpeed decides, "
        "which is only in stage 3.",
        "default",
    )
