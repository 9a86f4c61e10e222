"""Tables as the sweeps of the paper would give, from a made-up model of times whose effects a test can choose."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables import points as schemas
from nightsweep.analysis.tables.part_names import GROUPS
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.sweep.sweep import load

CONFIG = Path(__file__).parents[3] / "config"
TOPOLOGY = (
    "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV6\tNV6\tSYS\t0-31\t0\t\tN/A\nGPU1\tNV6\t X \tNV6\tNV6\t0-31\t0\t\tN/A\n"
    "GPU2\tNV6\tNV6\t X \tPHB\t32-63\t1\t\tN/A\nGPU3\tSYS\tNV6\tPHB\t X \t32-63\t1\t\tN/A"
)
EFFECTS = {
    "nhwc": 0.7,  # factors of the step time
    "pinned": 0.8,
    "pinned_many": 0.9,  # on several GPUs
    "fp32": 0.6,  # of fp64's
    "fp16": 0.5,  # of fp32's
    "dali": 0.6,
    "dali_far": 0.5,
    "small_scaling": 1.5,  # step time on several GPUs over one, at 100 px
    "llm_scaling": 1.6,
    "ddp_ds": 1.0,
    "dpo": 2.0,
    "qat": 3.0,
    "qlora": 1.2,
    "qlora_memory": 0.5,
    "launches": 0.8,  # share of API time
    "accuracy": 0.985,
    "fp16_accuracy": 0.0,  # fp16's above fp32's
}
NOISE = (-0.01, 0.0, 0.012)
"""By repeat, of a time."""


def plan(preset):
    """Points of both sweeps' preset, and DALI's, which that leaves out."""
    for name in ("paper-image", "paper-llm"):
        yield from load(CONFIG / f"{name}.yaml", preset).points
    base = next(load(CONFIG / "paper-image.yaml", "hour").points.__iter__()).settings()
    base |= {"source": "raw", "precision": "fp16", "image_size": 300, "pin_memory": True}
    for numa in ("none", "near", "far"):
        for loader in ("torch", "dali"):
            for repeat in range(3):
                yield complete(
                    base | {"loader": loader, "across_epochs": loader != "dali", "numa": numa, "repeat": repeat}
                )


def _image_ms(p, e):
    ms = 100 * (p.image_size / 300) ** 2 * (e["nhwc"] if p.layout == "nhwc" else 1)
    ms *= {"fp64": 1, "tf32": 0.5}.get(p.precision, e["fp32"]) * (e["fp16"] if p.precision == "fp16" else 1)
    if p.pin_memory:
        ms *= e["pinned_many"] if p.world_size > 1 else e["pinned"]
    if p.loader == "dali":
        ms *= e["dali_far"] if p.numa == "far" else e["dali"]
    if p.world_size > 1 and p.image_size == 100:
        ms *= e["small_scaling"]
    return ms * (e["ddp_ds"] if p.strategy == "ddp_ds" and p.world_size > 1 else 1.1)


def _llm_ms(p, e):
    ms = 200 * (e["dpo"] if p.method.startswith("dpo") else 1) * (e["qlora"] if p.method.endswith("qlora") else 1)
    return ms * (e["qat"] if p.method == "qat" else 1) * (e["llm_scaling"] if p.world_size > 1 else 1)


def _memory(p, e):
    if p.workload == "image":
        return 5 * 2**30
    gib = {"full": 75, "dpo": 90, "qat": 76}.get(p.method, 16) * (
        e["qlora_memory"] if p.method.endswith("qlora") else 1
    )
    return int(gib * (1.1 if p.method.startswith("dpo") else 1) * 2**30)


def _row(p, e):
    ms = (_image_ms if p.workload == "image" else _llm_ms)(p, e) * (1 + NOISE[p.repeat])
    samples = p.micro_batch * p.world_size
    return {
        "point_id": p.id,
        "sweep": "paper",
        **p.settings(),
        **({"data": "mnist"} if p.epochs else {}),
        "status": "ok",
        "world_size": p.world_size,
        "accelerator": "NVIDIA H100",
        "hosts": ["node1"],
        "device_used": "cuda",
        "topology": TOPOLOGY,
        "tracer_used": "nsys" if p.traced_steps else None,
        "step_ms_median": ms,
        "step_ms_mean": ms,
        "samples_per_s": samples / ms * 1e3,
        "tokens_per_s": p.seq_len and samples * p.seq_len * (2 if p.method.startswith("dpo") else 1) / ms * 1e3,
        "epoch_s": ms * (1000 if p.strategy == "ddp" else 1000 / p.world_size) / 1e3,
        "peak_memory_bytes": _memory(p, e),
    }


def _activities(p, e):
    ms = (_image_ms if p.workload == "image" else _llm_ms)(p, e) * (1 + NOISE[p.repeat]) * p.traced_steps * 1e6
    busy, rest = e["launches"], 1 - e["launches"]
    named = [
        ("compute", "gemm", 0.8, None),
        ("communication", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0.1, None),
        ("copy", "HtoD", 0.05 if p.pin_memory else 0.1, 30_000_000 * p.traced_steps),
        ("copy", "DtoD", 0.02 if p.layout != "nhwc" else 0.01, 10_000_000 * p.traced_steps),
        ("runtime", "cudaLaunchKernel", busy * 0.4, None),
        ("sync", "cudaStreamSynchronize", busy * 0.5, None),
        ("sync", "cudaEventSynchronize", busy * 0.1, None),
        ("runtime", "cudaMemcpyAsync", rest * 0.9, None),
        ("runtime", "cudaEventDestroy", rest * 0.1, None),
    ]
    for rank in range(p.world_size):
        for category, name, share, size in named:
            if category != "communication" or p.world_size > 1:
                yield {
                    "point_id": p.id,
                    "rank": rank,
                    "category": category,
                    "name": name,
                    "count": p.traced_steps,
                    "total_ns": int(ms * share),
                    "bytes": size,
                }


def _breakdown(p):
    for rank in range(p.world_size):
        for step in range(p.traced_steps):
            for part, share in zip(GROUPS, (60, 10, 10, 5, 15), strict=True):
                yield {"point_id": p.id, "rank": rank, "step": step, "part": part, "duration_ns": share * 1_000_000}


def _accuracy(p, e):
    best = e["accuracy"] + (e["fp16_accuracy"] if p.precision == "fp16" else 0) + 0.001 * (p.repeat - 1)
    for epoch in range(1, p.epochs + 1):
        yield {"point_id": p.id, "epoch": epoch, "accuracy": best * (1 - 0.6**epoch) if epoch < p.epochs else best}


def made_up(repeats: int = 3, preset: str = "hour", **effects: float) -> dataset.Tables:
    """The tables, with some effects other than EFFECTS."""
    e = EFFECTS | effects
    points = list({p.id: p for p in plan(preset) if p.repeat < repeats}.values())
    rows = {
        "points": [_row(p, e) for p in points],
        "activities": [row for p in points if p.traced_steps for row in _activities(p, e)],
        "breakdown": [row for p in points if p.traced_steps for row in _breakdown(p)],
        "accuracy": [row for p in points if p.epochs for row in _accuracy(p, e)],
    }
    frames = {name: pl.DataFrame(own, infer_schema_length=None) for name, own in rows.items()}
    return dataset.Tables({n: column.conform(frame, schemas.TABLES[n]).collect() for n, frame in frames.items()})
