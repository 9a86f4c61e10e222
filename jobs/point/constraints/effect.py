"""Settings without effect: told where they differ from their default, for only then would they make a second point that
runs the same job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jobs.point.constraints.compute import ADAPTERS
from jobs.point.constraints.reason import Reason
from jobs.point.point import Point, defaults


@dataclass(frozen=True)
class Effect:
    """`names` have an effect only where the setting `of` is one of `values`, or, with `but`, none of them."""

    names: tuple[str, ...]
    of: str
    values: tuple[Any, ...]
    but: bool = False

    def reasons(self, p: Point) -> Iterator[Reason]:
        """The settings that a point gives in vain."""
        found, known = getattr(p, self.of), defaults(p.workload)
        if found is None or (found in self.values) != self.but:
            return
        for name in self.names:
            value = getattr(p, name)
            if value is not None and value != known[name]:
                yield Reason((name, self.of), f"{name} {_shown(value)} has no effect: {self.of} is {_shown(found)}")


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_DDP = ("ddp", "ddp_ds")
_ZERO = ("zero1", "zero2", "zero3")
_DPO = ("dpo", "dpo_lora", "dpo_qlora")
_ON_GPUS = (
    "pin_memory",
    "non_blocking",
    "nvml_hz",
    "allocator",
    "empty_cache",
    "cudnn_benchmark",
    "mps",
    "device_prefetch",
)

EFFECTS: tuple[Effect, ...] = (
    Effect(_ON_GPUS, "device", ("cpu",), but=True),
    Effect(("non_blocking",), "pin_memory", (True,)),
    Effect(("tracer", "trace_ranks", "trace_preset", "keep_report"), "traced_steps", (0,), but=True),
    Effect(("prefetch_factor", "persistent_workers", "across_epochs"), "loader_workers", (0,), but=True),
    Effect(("persistent_workers",), "across_epochs", (False,)),
    Effect(("device_prefetch",), "non_blocking", (True,)),
    Effect(("ddp_bucket_mb", "ddp_bucket_view", "ddp_static_graph", "comm_hook"), "strategy", _DDP),
    Effect(("local_steps",), "strategy", ("local_sgd",)),
    Effect(("replicas",), "strategy", ("fsdp2", "tp", "pp")),
    Effect(("tensor_parallel", "reduce_dtype", "reshard_after_forward"), "strategy", ("fsdp2",)),
    Effect(("prefetch_layers",), "strategy", ("fsdp2", "zero3")),
    Effect(("pipeline_schedule",), "strategy", ("pp",)),
    Effect(("offload",), "strategy", ("fsdp2", *_ZERO)),
    Effect(("zero_communication",), "strategy", _ZERO),
    Effect(("reduce_dtype",), "precision", ("bf16", "fp16", "bf16_pure")),
    Effect(("cudnn_benchmark",), "workload", ("image",)),
    Effect(("mps",), "tenants", (1,), but=True),
    Effect(("resize_on",), "source", ("small",)),
    Effect(("fused_padding",), "model", ("mobilenet_v2",)),
    Effect(("space_to_depth",), "model", ("resnet50",)),
    Effect(("dali_on",), "loader", ("dali",)),
    Effect(("resize_on", "persistent_workers", "across_epochs"), "loader", ("torch", "mmap")),
    Effect(("loader_workers", "pin_memory", "source", "pixels"), "loader", ("device",), but=True),
    Effect(("target_accuracy",), "epochs", (0,), but=True),
    Effect(("lora_rank", "lora_alpha", "lora_dropout", "lora_targets"), "method", ADAPTERS),
    Effect(("dpo_beta",), "method", _DPO),
    Effect(("checkpoint_every",), "activation_checkpointing", (True,)),
)
