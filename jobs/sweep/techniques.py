"""The techniques that a sweep can switch on, each as a pair of points that differ in it alone.

`python -m jobs.sweep.techniques` writes config/techniques.yaml from here: the sweep that measures all of them. What it
measured becomes docs/techniques.md (analysis/tools/techniques.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from jobs.point.point import Point, complete

Settings = Mapping[str, Any]

TOPICS = (
    "interconnect",
    "mixed precision",
    "input pipeline",
    "memory",
    "data parallelism",
    "model parallelism",
    "pipeline parallelism",
    "insufficient parallelism",
    "data loading",
    "model hyperparameters",
    "memory management",
    "communication",
    "scheduling",
    "monitoring",
)
"""What the techniques are against: bottlenecks of large-model training, and the seven causes of low utilisation."""

_WINDOW = {"device": "cuda", "warmup_steps": 5, "timed_steps": 20, "traced_steps": 0}
RESNET = _WINDOW | {
    "workload": "image", "model": "resnet50", "image_size": 224, "micro_batch": 256, "precision": "bf16",
    "layout": "nhwc", "loader": "device", "optimizer": "sgd", "learning_rate": 0.01,
}  # fmt: skip
LOADED = {name: value for name, value in RESNET.items() if name != "loader"} | {
    "source": "raw", "loader_workers": 4, "pin_memory": True,
}  # fmt: skip
MOBILE = RESNET | {"model": "mobilenet_v2", "image_size": 100, "micro_batch": 32}
LLM = _WINDOW | {
    "workload": "llm", "model": "llama-1b", "seq_len": 2048, "micro_batch": 4, "precision": "bf16", "loss_chunks": 4,
    "learning_rate": 1e-5,
}  # fmt: skip
PAIR = {"ranks_per_node": 2}


@dataclass(frozen=True)
class Technique:
    """One technique: `base | off` is a point without it, `base | on` one with it. `topics`: of TOPICS. Where it cannot
    be measured on the machine at hand, `missing` says why, and there are no points."""

    name: str
    topics: tuple[str, ...]
    base: Settings
    on: Settings
    off: Settings
    missing: str | None = None

    def points(self) -> tuple[Point, Point]:
        """Without it, with it."""
        return complete({**self.base, **self.off}), complete({**self.base, **self.on})


def _switch(name: str, topics: str, base: Settings, on: Settings, off: Settings | None = None) -> Technique:
    return Technique(name, tuple(topics.split(", ")), base, on, off or {})


def _missing(name: str, topics: str, on: Settings, why: str) -> Technique:
    return Technique(name, tuple(topics.split(", ")), {}, on, {}, why)


TECHNIQUES: tuple[Technique, ...] = (
    # Number formats
    _switch("FP64", "mixed precision", MOBILE | {"precision": "fp32"}, {"precision": "fp64"}),
    _switch("TF32", "mixed precision", RESNET | {"precision": "fp32"}, {"precision": "tf32"}),
    _switch("FP16 with loss scaling", "mixed precision", RESNET | {"precision": "fp32"}, {"precision": "fp16"}),
    _switch("BF16 autocast", "mixed precision", RESNET | {"precision": "fp32"}, {"precision": "bf16"}),
    _switch("BF16 throughout", "mixed precision, memory", LLM, {"precision": "bf16_pure"}),
    _switch("FP8 products", "mixed precision", LLM | {"compile": "default"}, {"float8": "tensorwise"}),
    # From disk to device
    _switch("loader workers", "input pipeline, data loading", LOADED, {}, {"loader_workers": 1}),
    _switch("batches loaded ahead", "input pipeline, data loading", LOADED, {"prefetch_factor": 8}),
    _switch("pinned memory", "input pipeline, data loading", LOADED, {}, {"pin_memory": False}),
    _switch("copies that do not block", "input pipeline, data loading", LOADED, {"non_blocking": True}),
    _switch(
        "next batch copied beside the step", "input pipeline, data loading", LOADED | {"non_blocking": True},
        {"device_prefetch": True},
    ),
    _switch("bytes, not floats, copied", "input pipeline, data loading", LOADED, {"pixels": "uint8"}),
    _switch(
        "one memory-mapped array", "input pipeline, data loading", LOADED | {"pixels": "uint8"}, {"loader": "mmap"}
    ),
    _switch("raw pixels, not JPEG", "input pipeline, data loading", LOADED, {}, {"source": "jpeg"}),
    _switch(
        "images enlarged on the device", "input pipeline, data loading", LOADED | {"source": "small"},
        {"resize_on": "device"},
    ),
    _switch(
        "workers kept between epochs", "input pipeline, data loading", LOADED, {}, {"persistent_workers": False}
    ),
    _switch("DALI", "input pipeline, data loading", LOADED, {"loader": "dali"}),
    _switch(
        "DALI, JPEG decoded on the GPU", "input pipeline, data loading", LOADED | {"source": "jpeg"},
        {"loader": "dali", "dali_on": "mixed", "pin_memory": False},
    ),
    # More work for the device at a time, fewer and better kernels
    _switch(
        "larger batch", "model hyperparameters, insufficient parallelism", MOBILE, {"micro_batch": 512},
    ),
    _switch("channels last", "model hyperparameters", RESNET, {}, {"layout": "nchw"}),
    _switch("layouts that agree", "model hyperparameters", RESNET, {}, {"layout": "mixed"}),
    _switch("cuDNN's trials", "model hyperparameters", RESNET, {"cudnn_benchmark": True}),
    _switch("torch.compile", "insufficient parallelism", RESNET, {"compile": "default"}),
    _switch("CUDA graphs", "insufficient parallelism", MOBILE, {"cuda_graph": True}),
    _switch("torch.compile with CUDA graphs", "insufficient parallelism", MOBILE, {"compile": "reduce-overhead"}),
    _switch(
        "optimizer in one kernel", "insufficient parallelism", MOBILE, {"optimizer_kernels": "fused"},
        {"optimizer_kernels": "for-loop"},
    ),
    _switch(
        "first convolution over blocks of pixels", "model hyperparameters, mixed precision",
        RESNET | {"precision": "bf16_pure", "micro_batch": 512, "compile": "default", "cudnn_benchmark": True},
        {"space_to_depth": True},
    ),
    _switch("padding inside convolutions", "insufficient parallelism", MOBILE, {"fused_padding": True}),
    _switch("flash attention", "memory, model hyperparameters", LLM, {"attention": "flash"}, {"attention": "eager"}),
    _switch("cuDNN's attention", "model hyperparameters", LLM, {"attention": "cudnn"}, {"attention": "flash"}),
    _switch("packed sequences", "model hyperparameters", LLM, {"sequences": "packed"}, {"sequences": "padded"}),
    # Memory
    _switch("activation checkpointing", "memory, memory management", LLM, {"activation_checkpointing": True}),
    _switch(
        "checkpointing of every second layer", "memory, memory management", LLM | {"activation_checkpointing": True},
        {"checkpoint_every": 2},
    ),
    _switch("loss in parts", "memory, memory management", LLM, {}, {"loss_chunks": 0}),
    _switch("gradient accumulation", "memory, communication", LLM | PAIR, {"micro_batch": 1, "grad_accum": 4}),
    _switch("expandable segments", "memory management", LLM | {"sequences": "padded"}, {"allocator": "expandable"}),
    _switch("the driver's allocator", "memory management", LLM, {"allocator": "async"}),
    _switch("memory kept between steps", "memory management", LLM, {}, {"empty_cache": True}),
    _switch(
        "the largest batch, searched for", "memory management, insufficient parallelism", RESNET,
        {"batch_search": True},
    ),
    _switch("LoRA", "memory, model hyperparameters", LLM, {"method": "lora"}),
    _switch("QLoRA", "memory, model hyperparameters", LLM | {"method": "lora"}, {"method": "qlora"}),
    # Ranks
    _switch("data parallel threads", "data parallelism", RESNET | PAIR, {"strategy": "dp"}),
    _switch("data parallel ranks", "data parallelism", RESNET, PAIR),
    _switch("each rank its share of the data", "data parallelism", RESNET | PAIR, {}, {"strategy": "ddp"}),
    _switch("local SGD", "data parallelism, communication", RESNET | PAIR, {"strategy": "local_sgd"}),
    _switch("ZeRO 1", "data parallelism, memory", LLM | PAIR, {"strategy": "zero1"}),
    _switch("ZeRO 2", "data parallelism, memory", LLM | PAIR, {"strategy": "zero2"}),
    _switch("ZeRO 3", "data parallelism, memory", LLM | PAIR, {"strategy": "zero3"}),
    _switch("FSDP2", "data parallelism, memory", LLM | PAIR, {"strategy": "fsdp2"}),
    _switch(
        "optimizer kept on the host", "memory, memory management", LLM | PAIR | {"strategy": "zero2"},
        {"offload": "optimizer"},
    ),
    _switch(
        "weights kept on the host", "memory, memory management", LLM | PAIR | {"strategy": "fsdp2"}, {"offload": "all"}
    ),
    _switch(
        "tensor parallelism", "model parallelism", LLM | PAIR | {"loss_chunks": 0}, {"strategy": "tp"}
    ),
    _switch(
        "pipeline, GPipe", "pipeline parallelism", LLM | PAIR | {"loss_chunks": 0, "micro_batch": 1, "grad_accum": 8},
        {"strategy": "pp", "pipeline_schedule": "gpipe"},
    ),
    _switch(
        "pipeline, 1F1B", "pipeline parallelism", LLM | PAIR | {"loss_chunks": 0, "micro_batch": 1, "grad_accum": 8},
        {"strategy": "pp"},
    ),
    _switch(
        "sharded copies (HSDP)", "data parallelism, interconnect", LLM | {"ranks_per_node": 4, "strategy": "fsdp2"},
        {"replicas": 2},
    ),
    _switch(
        "sharding beside tensor parallelism", "model parallelism",
        LLM | {"ranks_per_node": 4, "strategy": "fsdp2", "loss_chunks": 0}, {"tensor_parallel": 2},
    ),
    # What they say to each other
    _switch("buckets of gradients", "communication, interconnect", LLM | PAIR, {}, {"ddp_bucket_mb": 1}),
    _switch("gradients in their buckets", "communication, memory", LLM | PAIR, {"ddp_bucket_view": True}),
    _switch("static graph of DDP", "communication", LLM | PAIR, {"ddp_static_graph": True}),
    _switch("gradients sent as BF16", "communication, interconnect", LLM | PAIR, {"comm_hook": "bf16"}),
    _switch("gradients as factors (PowerSGD)", "communication, interconnect", LLM | PAIR, {"comm_hook": "powersgd"}),
    _switch("gradients summed in BF16", "communication", LLM | PAIR | {"strategy": "fsdp2"}, {"reduce_dtype": "bf16"}),
    _switch("weights gathered ahead", "communication", LLM | PAIR | {"strategy": "fsdp2"}, {"prefetch_layers": 2}),
    _switch(
        "weights kept after the forward pass", "communication, memory", LLM | PAIR | {"strategy": "fsdp2"},
        {"reshard_after_forward": False},
    ),
    _switch(
        "ZeRO's reductions beside the backward pass", "communication", LLM | PAIR | {"strategy": "zero2"},
        {"zero_communication": "overlapped"}, {"zero_communication": "serial"},
    ),
    _missing(
        "InfiniBand and GPUDirect RDMA", "interconnect, communication", {"nodes": 2},
        "the machine measured is one host with NVLink; its nodes talk over sockets",
    ),
    # Who shares what
    _switch("a GPU of one's own", "scheduling", MOBILE, {}, {"tenants": 2}),
    _switch("Multi-Process Service", "scheduling", MOBILE | {"tenants": 2}, {"mps": True}),
    _missing(
        "Multi-Instance GPU", "scheduling", {},
        "set by the administrator; an instance is used as a GPU is (CUDA_VISIBLE_DEVICES)",
    ),
    _switch("CPUs near the GPU", "scheduling", LOADED, {"numa": "near"}),
    _missing("CPUs far from the GPU", "scheduling", {"numa": "far"}, "the host measured has one NUMA node"),
    _switch("threads for the CPU's operators", "scheduling", LOADED | {"loader_workers": 0}, {}, {"cpu_threads": 1}),
    # Watching
    _switch("sampling of the GPUs", "monitoring", MOBILE, {}, {"nvml_hz": 0}),
    _switch("Nsight Systems and counters", "monitoring", MOBILE, {"traced_steps": 5, "trace_preset": "deep"}),
)  # fmt: skip


def sweep() -> dict[str, Any]:
    """The content of config/techniques.yaml: all points of all techniques, each once."""
    points: dict[str, dict[str, Any]] = {}
    for technique in TECHNIQUES:
        if technique.missing is None:
            for given in (technique.off, technique.on):
                settings = {**technique.base, **given}
                points.setdefault(complete(settings).id, settings)
    return {"name": "techniques", "include": list(points.values()), "repeats": 3, "resources": {"timeout_min": 30}}


HEAD = "# Written from jobs/sweep/techniques.py by `python -m jobs.sweep.techniques`; do not edit.\n"


def text() -> str:
    """config/techniques.yaml."""
    return HEAD + yaml.safe_dump(sweep(), sort_keys=False, width=200)


def main() -> None:
    (Path(__file__).parents[2] / "config/techniques.yaml").write_text(text())


if __name__ == "__main__":
    main()
