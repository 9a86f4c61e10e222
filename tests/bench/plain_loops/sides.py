"""What is compared: of each job the reference, and the built-in workload beside it."""

from __future__ import annotations

from typing import Any

from nightsweep.jobs.point.point import Point, complete
from nightsweep.jobs.sweep import code

BASE: dict[str, Any] = {"device": "cuda", "warmup_steps": 5, "timed_steps": 30, "traced_steps": 0}
RESNET: dict[str, Any] = {
    "workload": "image",
    "model": "resnet50",
    "image_size": 224,
    "micro_batch": 512,
    "precision": "bf16_pure",
    "layout": "nhwc",
    "compile": "default",
    "cudnn_benchmark": True,
    "optimizer": "sgd",
    "optimizer_kernels": "fused",
    "learning_rate": 0.01,
    "loader": "device",
    "source": "small",
    "space_to_depth": True,
}
LLAMA: dict[str, Any] = {
    "workload": "llm",
    "model": "llama-8b",
    "method": "full",
    "seq_len": 4096,
    "micro_batch": 2,
    "precision": "bf16_pure",
    "compile": "default",
    "attention": "cudnn",
    "optimizer": "adamw",
    "optimizer_kernels": "fused",
    "learning_rate": 1e-5,
    "loss_chunks": 4,
    "float8": "none",
    "timed_steps": 12,
}
PLAIN: dict[str, Any] = {"workload": "command", "launcher": "none", "workdir": "tests/bench/plain_loops"}
SIDES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "resnet": (PLAIN | {"command": "resnet.py"}, RESNET),
    "llama": (PLAIN | {"command": "llama.py", "timed_steps": 12}, LLAMA),
    "lora": (PLAIN | {"command": "llama.py --adapters 8", "timed_steps": 12}, LLAMA | {"method": "lora"}),
    "float8": (LLAMA, LLAMA | {"float8": "tensorwise"}),
}
"""Of each job what is the reference, and what is compared with it."""


def points(job: str, repeats: int) -> list[Point]:
    """In turns that swap."""
    sides = [BASE | side for side in SIDES[job]]
    turns = (side | {"repeat": n} for n in range(repeats) for side in (sides if n % 2 == 0 else sides[::-1]))
    return [code.with_code(complete(settings)) for settings in turns]
