"""What the settings of one point must not be together.

Each check is a small function of a point that gives a `Reason` or None. They look at the point alone, so a setting
without effect (LoRA's rank in full training) is told only when it differs from its default: only then would it make
a second point that runs the same job.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from jobs.point import IMAGE_MODELS, LLM_MODELS, Point, defaults

MAX_SEQ_LEN = 8192
MAX_SEQ_LEN_NANO = 1024
PATCH_PX = 16


@dataclass(frozen=True)
class Reason:
    """Why a point cannot be: the settings at fault, the likeliest culprit first, and a text."""

    settings: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Source:
    """Where a point comes from: the part of the file (axes, or one include), its choices, and paths in the file."""

    choices: dict[str, list[Any]]
    paths: dict[str, str]
    listed: frozenset[str]

    def locate(self, names: tuple[str, ...], point: Point) -> str:
        """The path of the one value at fault; the values that vary where it takes several."""
        varying = [n for n in names if len(self.choices.get(n, ())) > 1]
        if len(varying) > 1:
            return f"point({', '.join(f'{n}={getattr(point, n)}' for n in varying)})"
        given = varying or [n for n in names if n in self.choices] or [n for n in names if n in self.paths]
        name = (given or list(names))[0]
        index = f"[{self.choices[name].index(getattr(point, name))}]" if name in self.listed else ""
        return self.paths.get(name, name) + index


def model_of_workload(p: Point) -> Reason | None:
    models = IMAGE_MODELS if p.workload == "image" else LLM_MODELS
    if p.model in models:
        return None
    return Reason(("model", "workload"), f"{p.model!r} is no {p.workload} model (there are {', '.join(models)})")


def numa_of_a_gpu(p: Point) -> Reason | None:
    if p.numa != "none" and p.device == "cpu":
        return Reason(("numa", "device"), f"numa {p.numa} on device cpu: there is no GPU to be near to")
    return None


def zero_precision(p: Point) -> Reason | None:
    if p.strategy in ("zero1", "zero2", "zero3") and p.precision == "fp64":
        return Reason(
            ("strategy", "precision"), f"{p.strategy} with fp64: DeepSpeed trains in fp32, bf16 and fp16 only"
        )
    return None


def tf32_on_cpu(p: Point) -> Reason | None:
    if p.precision == "tf32" and p.device == "cpu":
        return Reason(("precision", "device"), "tf32 is arithmetic of GPUs; device is cpu")
    return None


def pin_memory_on_cpu(p: Point) -> Reason | None:
    if p.pin_memory and p.device == "cpu":
        return Reason(("pin_memory", "device"), "pin_memory has no effect: device is cpu")
    return None


def non_blocking_on_cpu(p: Point) -> Reason | None:
    if p.non_blocking and p.device == "cpu":
        return Reason(("non_blocking", "device"), "non_blocking has no effect: device is cpu")
    return None


def non_blocking_unpinned(p: Point) -> Reason | None:
    if p.non_blocking and not p.pin_memory:
        return Reason(("non_blocking", "pin_memory"), "non_blocking has no effect without pin_memory")
    return None


def nsys_on_cpu(p: Point) -> Reason | None:
    if p.tracer == "nsys" and p.device == "cpu":
        return Reason(("tracer", "device"), "nsys traces GPUs; device is cpu")
    return None


def unused_without_trace(name: str, p: Point) -> Reason | None:
    value = getattr(p, name)
    if p.traced_steps == 0 and value != defaults(p.workload)[name]:
        return Reason((name, "traced_steps"), f"{name} {str(value).lower()} has no effect: traced_steps is 0")
    return None


def _trace_ranks(p: Point) -> list[int]:
    return [int(word) for word in p.trace_ranks.split(",") if word.isdigit()]


def trace_ranks_differ(p: Point) -> Reason | None:
    twice = [rank for rank, count in Counter(_trace_ranks(p)).items() if count > 1]
    if twice:
        return Reason(("trace_ranks",), f"rank {twice[0]} is given more than once in {p.trace_ranks}")
    return None


def trace_ranks_exist(p: Point) -> Reason | None:
    ranks = _trace_ranks(p)
    if ranks and max(ranks) >= p.world_size:
        text = f"rank {max(ranks)} never comes: ranks go from 0 to {p.world_size - 1}"
        return Reason(("trace_ranks", "ranks_per_node", "nodes"), text)
    return None


def nvml_on_cpu(p: Point) -> Reason | None:
    if p.device == "cpu" and p.nvml_hz != defaults(p.workload)["nvml_hz"]:
        return Reason(("nvml_hz", "device"), f"nvml_hz {p.nvml_hz} has no effect: device is cpu")
    return None


def lora_rank_unused(p: Point) -> Reason | None:
    if p.method == "full" and p.lora_rank != defaults("llm")["lora_rank"]:
        return Reason(("lora_rank", "method"), f"lora_rank {p.lora_rank} has no effect: method is full")
    return None


def prefetch_unused(p: Point) -> Reason | None:
    if p.loader_workers == 0 and p.prefetch_factor != defaults(p.workload)["prefetch_factor"]:
        text = f"prefetch_factor {p.prefetch_factor} has no effect: loader_workers is 0"
        return Reason(("prefetch_factor", "loader_workers"), text)
    return None


def vit_patches(p: Point) -> Reason | None:
    if p.model == "vit_s" and p.image_size is not None and p.image_size % PATCH_PX:
        return Reason(("image_size", "model"), f"{p.image_size} is not a multiple of {PATCH_PX}, as vit_s needs")
    return None


def sequence_length(p: Point) -> Reason | None:
    limit = MAX_SEQ_LEN_NANO if p.model == "llama-nano" else MAX_SEQ_LEN
    if p.seq_len is not None and p.seq_len > limit:
        return Reason(("seq_len", "model"), f"{p.seq_len} is more than {limit}, the most of {p.model}")
    return None


def fault_rank(p: Point) -> Reason | None:
    if p.fault and (rank := _fault(p.fault)[0]) >= p.world_size:
        text = f"rank {rank} never fails: ranks go from 0 to {p.world_size - 1}"
        return Reason(("fault", "ranks_per_node", "nodes"), text)
    return None


def fault_step(p: Point) -> Reason | None:
    # The traced look starts anew at step 0, so the longer of the two looks is the limit.
    steps = p.warmup_steps + max(p.timed_steps, p.traced_steps)
    if p.fault and (step := _fault(p.fault)[1]) >= steps:
        text = f"step {step} never comes: steps go from 0 to {steps - 1}"
        return Reason(("fault", "warmup_steps", "timed_steps", "traced_steps"), text)
    return None


def _fault(text: str) -> tuple[int, int]:
    rank, step = re.findall(r"\d+", text)
    return int(rank), int(step)


CHECKS: tuple[Callable[[Point], Reason | None], ...] = (
    model_of_workload,
    zero_precision,
    numa_of_a_gpu,
    tf32_on_cpu,
    pin_memory_on_cpu,
    non_blocking_on_cpu,
    non_blocking_unpinned,
    nsys_on_cpu,
    *(partial(unused_without_trace, name) for name in ("tracer", "trace_ranks", "trace_preset", "keep_report")),
    trace_ranks_differ,
    trace_ranks_exist,
    nvml_on_cpu,
    lora_rank_unused,
    prefetch_unused,
    vit_patches,
    sequence_length,
    fault_rank,
    fault_step,
)


def reasons(point: Point) -> list[Reason]:
    """All that is wrong with a point."""
    return [reason for check in CHECKS if (reason := check(point)) is not None]


def errors(points: Iterable[tuple[Point, Source]]) -> list[str]:
    """What is wrong with the points of a sweep: each place and reason once, with the number of points it holds for."""
    counts = Counter(
        f"{source.locate(reason.settings, point)}: {reason.text}"
        for point, source in points
        for reason in reasons(point)
    )
    return [f"{line} ({n} point{'s' if n > 1 else ''})" for line, n in counts.items()]
