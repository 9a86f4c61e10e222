"""A coarse estimate of what a sweep costs, before it runs: GPU-hours and disk.

Time of a step is its floating-point work over a share of an H100's peak, and never under a floor that stands for
launching kernels and talking between ranks. Starting up is a constant for each run. It ignores memory, network,
data loading and failed attempts, so it tells an evening from a week and no more; it holds for GPUs, not for CPU ranks.
For a model that is not listed here a step takes the floor; for
somebody's own script, half a second.

    work of a step   llm    6 * parameters * tokens (with adapters 4: frozen weights get no gradient; DPO 2 more for
                            the reference model, and of both texts of a pair)
                     image  3 * 2 * multiply-adds of a 224 px image * (size / 224)^2 * images
    disk of a point  1 MB + 1.5 MB for each rank and traced step
    files of a point 4 and a log, and its traces; and 18 a chunk (chunks.py), and 32 for its trace tables. While it runs
                     it has ten and more a rank, which are packed once its tables are made
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from nightsweep.jobs.point import plan
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.point.settings.llm import ADAPTERS, PREFERENCES
from nightsweep.jobs.point.workloads import WORKLOADS
from nightsweep.jobs.sweep.chunks import SIZE

NOTE = "coarse: H100-class GPUs at a fixed share of peak, nothing fails; right to a factor of a few"

PARAMETERS = {
    "llama-nano": 1e6,
    "llama-160m": 160e6,
    "llama-1b": 1.24e9,
    "llama-3b": 3.2e9,
    "llama-8b": 8.03e9,
}
MULTIPLY_ADDS = {"mobilenet_v2": 0.3e9, "resnet50": 4.1e9, "vit_s": 4.6e9}
PEAK_FLOPS = {"fp64": 67e12, "fp32": 67e12, "tf32": 495e12, "bf16": 989e12, "fp16": 989e12, "bf16_pure": 989e12}
FLOAT8_GAIN = 1.25
FLOOR_STEP_S = 0.020
SCRIPT_STEP_S = 0.5
"""Of a script of which nothing is known."""
START_S = 25.0
"""Of a point that runs alone, from its job's start to its first step and after its last."""
FORKED_START_S = 10.0
"""Of a point in a job of several, whose ranks are forked."""
RECORD_BYTES = 1e6
TRACE_BYTES = 1.5e6
POINT_FILES = 4 + 1
"""Of the point itself, and its log."""
CHUNK_FILES = 16 + 1 + 1
"""Tables, what became of its points, log."""
TRACE_TABLES = 32
"""Of a chunk with traces, each time that it is saved; once where that takes less than a minute."""
REFERENCE_PX = 224
BUILTIN_IMAGES, MNIST_IMAGES = 1797, 60_000
"""Images of the built-in data set; and of any folder, as many as MNIST has."""


@dataclass(frozen=True)
class Shape:
    """All points of a sweep on the same number of nodes and ranks."""

    nodes: int
    ranks_per_node: int
    gpus: int
    """Of one point; 0 where ranks compute on the CPU."""
    points: int
    gpu_hours: float


@dataclass(frozen=True)
class Estimate:
    """What a sweep costs; `shapes` largest first."""

    gpu_hours: float
    wall_hours: float
    disk_bytes: float
    files: int
    shapes: tuple[Shape, ...]


def step_flops(point: Point) -> float:
    """Floating-point operations of one optimizer step of one rank."""
    samples = point.micro_batch * point.grad_accum
    if point.workload == "llm":
        preference = point.method in PREFERENCES
        passes = (4 if point.method in ADAPTERS else 6) + 2 * preference
        recomputed = 2 / (point.checkpoint_every or 1) if point.activation_checkpointing else 0
        tokens = samples * (point.seq_len or 0) * (2 if preference else 1)
        return (passes + recomputed) * PARAMETERS[point.model] * tokens
    scale = ((point.image_size or 0) / REFERENCE_PX) ** 2
    return 3 * 2 * MULTIPLY_ADDS.get(point.model, 0.0) * scale * samples


def step_s(point: Point) -> float:
    """Seconds of one optimizer step."""
    if point.workload == "command":
        return SCRIPT_STEP_S
    rate = PEAK_FLOPS[point.precision] * WORKLOADS[point.workload].share_of_peak
    if point.float8 not in (None, "none"):
        rate *= FLOAT8_GAIN
    return max(FLOOR_STEP_S, step_flops(point) / rate)


def wall_s(point: Point, start_s: float = START_S) -> float:
    """Seconds of a point: its starts, each of `start_s`, the timed and traced steps, all epochs, and the control where
    there is one."""
    step = step_s(point)
    samples = (BUILTIN_IMAGES if point.data == "builtin" else MNIST_IMAGES) * (point.epochs or 0)
    epochs = samples / (point.micro_batch * point.grad_accum * point.world_size) if samples else 0.0
    runs = [point.timed_steps + epochs + (point.traced_steps if plan.is_one_start(point) else 0)]
    runs += [] if plan.is_one_start(point) or not point.traced_steps else [point.traced_steps]
    if point.cost_pairs:
        block = plan.block_steps(point, step)
        plans = [plan.control_plain(block)] + (
            [plan.control_tracer(point, block, "nsys" if point.tracer == "nsys" else "kineto")]
            if point.traced_steps
            else []
        )
        runs += [sum(b.steps for b in blocks) for blocks in plans] * point.cost_pairs
    return sum(start_s + (point.warmup_steps + steps) * step for steps in runs)


def disk_bytes(point: Point) -> float:
    """Bytes of a point's folder."""
    return RECORD_BYTES + TRACE_BYTES * point.world_size * point.traced_steps


def count_files(point: Point) -> int:
    """Files that a point leaves, without those that it shares with others."""
    if not point.traced_steps:
        return POINT_FILES
    of_rank = 2 if point.tracer == "nsys" and point.keep_report else 1
    return POINT_FILES + of_rank * len(point.traced_ranks())


def estimate(points: Iterable[Point]) -> Estimate:
    """The cost of all points together."""
    points = list(points)
    seconds: dict[tuple[int, int, int], list[float]] = {}
    for point in points:
        shape = (point.nodes, point.ranks_per_node, point.nodes * point.gpus_per_node())
        seconds.setdefault(shape, []).append(wall_s(point))
    shapes = [Shape(*shape, len(s), shape[2] * sum(s) / 3600) for shape, s in seconds.items()]
    return Estimate(
        gpu_hours=sum(shape.gpu_hours for shape in shapes),
        wall_hours=sum(map(sum, seconds.values())) / 3600,
        disk_bytes=sum(map(disk_bytes, points)),
        files=sum(map(count_files, points))
        + CHUNK_FILES * math.ceil(len(points) / SIZE)
        + TRACE_TABLES * math.ceil(sum(point.traced_steps > 0 for point in points) / SIZE),
        shapes=tuple(sorted(shapes, key=lambda s: (-s.gpus, -s.nodes))),
    )
