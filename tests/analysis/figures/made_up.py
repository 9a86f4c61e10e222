"""A small sweep that is made up, with points that failed or did not run, and what a figure of it says."""

from pathlib import Path

import polars as pl

from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables import points as schemas
from nightsweep.analysis.tables.part_names import GROUPS
from nightsweep.jobs.point import point as settings

BAD = {1: ("failed", "gpu_out_of_memory", "rank 1: <script>alert(1)</script> CUDA out of memory in backward")}


def _plan():
    image = {"workload": "image", "model": "resnet50", "micro_batch": 16}
    llm = {"workload": "llm", "model": "llama-nano", "micro_batch": 4, "seq_len": 128}
    for base, axis, values in ((image, "precision", ("bf16", "fp32")), (llm, "strategy", ("ddp_ds", "fsdp2", "zero2"))):
        for value in values:
            for ranks in (1, 2):
                for repeat in range(3):
                    yield settings.complete({**base, axis: value, "ranks_per_node": ranks, "repeat": repeat})


def _point(index, point):
    row = {"point_id": point.id, "sweep": "demo", **point.settings(), "attempt": 1, "status": "ok"}
    if point.strategy == "zero2":
        status, reason, message = BAD[1] if point.ranks_per_node == 2 else ("not_run", "no_record", None)
        return row | {"status": status, "reason": reason, "message": message}
    ms = (90.0 if point.workload == "image" else 140.0) * (0.6 if point.precision == "bf16" else 1)
    ms *= (1 + 0.15 * (point.world_size - 1)) * (1 + 0.02 * (index % 3))
    samples = point.micro_batch * point.world_size
    return row | {
        "device_used": "cpu",
        "backend": "gloo",
        "world_size": point.world_size,
        "accelerator": "AMD EPYC 9654",
        "hosts": ["node1"],
        "step_ms_median": ms,
        "step_ms_mean": ms * 1.02,
        "step_ms_p95": ms * 1.1,
        "samples_per_s": samples / ms * 1e3,
        "peak_memory_bytes": int(1.3 * 2**30) + index * 2**22,
        "loss_last": 1.5,
    }


def _steps(point):
    for rank in range(point.world_size):
        for step in range(25):
            loss = 2.3 * 0.95**step + 0.01 * rank + 0.02 * point.repeat + (0.1 if point.strategy == "fsdp2" else 0)
            yield {"point_id": point.id, "rank": rank, "step": step, "loss": loss, "samples": point.micro_batch}


def _breakdown(point):
    parts = dict(zip(GROUPS, (60, 12 * (point.world_size - 1), 3, 8, 9 + point.repeat), strict=True))
    for rank in range(point.world_size):
        for step in (5, 6):
            for part, ms in parts.items():
                yield {"point_id": point.id, "rank": rank, "step": step, "part": part, "duration_ns": ms * 1_000_000}


def _timeline(point):
    phases = (("data", 8), ("h2d", 3), ("forward", 25), ("backward", 45), ("optimizer", 11))
    for rank in range(point.world_size):
        for step in (5, 6, 7):
            start = ((step - 5) * 96 + rank) * 1_000_000
            own = {"point_id": point.id, "rank": rank, "step": step, "zero_ns": 10**18 + 2 * 10**9}
            yield own | {"lane": "range", "name": f"step {step}", "start_ns": start, "end_ns": start + 94_000_000}
            for name, ms in phases:
                end = start + ms * 1_000_000
                yield own | {"lane": "range", "name": name, "start_ns": start, "end_ns": end}
                if name in ("forward", "backward"):
                    for piece in range(start, end, 5_000_000):
                        span = {"start_ns": piece, "end_ns": piece + 4_000_000, "on_path": rank == 0}
                        yield own | {"lane": "compute", "name": "mm", **span}
                if name == "backward" and point.world_size > 1:
                    span = {"start_ns": end - 14_000_000, "end_ns": end, "on_path": True}
                    yield own | {"lane": "communication", "name": "all_reduce", **span}
                if name == "h2d":
                    yield own | {"lane": "copy", "name": "HtoD", "start_ns": start, "end_ns": end}
                start = end


def _samples(point):
    for tick in range(20):
        yield {
            "point_id": point.id,
            "look": "traced",
            "host": "node1",
            "t_ns": 10**18 + tick * 250_000_000,
            "cpu_percent": 80.0 + 10 * (tick % 4),
        }


def _diagnoses(point):
    """fsdp2: one cause; fp32: two kinds of one and a third of another; of the others nothing is found."""
    found = []
    if point.strategy == "fsdp2":
        found = [("insufficient_parallelism", "launch_bound", 0.02 * (1 + point.repeat))]
    elif point.precision == "fp32":
        found = [("model_hyperparameters", "tensor_cores_unused", 0.3), ("communication", "exposed_communication", 0.1)]
        found.append(("model_hyperparameters", "low_occupancy", 0.05))
    for place, (cause, kind, share) in enumerate([*found, ("monitoring", "missing_counters", 0.0)], 1):
        told = {"advice": "change a setting", "remedy": '{"precision": "bf16"}' if share else "{}", "method": "counted"}
        yield {"point_id": point.id, "place": place, "cause": cause, "kind": kind, "share": share, "gpu_s": 2.0, **told}


def _phases(row):
    """A start that takes a minute and steps that take ten seconds, of points that were run."""
    start_ns = 10**18
    lengths = (("launch", "start", 1), ("model", "start", 59), ("timed", "timed", 10), ("idle", "idle", 2))
    for phase, use, seconds in lengths if row["status"] != "not_run" else ():
        use = use if row["status"] == "ok" else "failed"
        own = {"point_id": row["point_id"], "attempt": 1, "phase": phase, "use": use, "start_ns": start_ns}
        gpus = row.get("world_size") or 2
        yield own | {"duration_ns": seconds * 10**9, "gpus": gpus, "gpu_s": float(seconds * gpus)}
        start_ns += seconds * 10**9


def _failure(row):
    return {
        **{k: row[k] for k in ("point_id", "status", "reason", "message")},
        "rank": 1,
        "host": "node1",
        "exit_code": 1,
        "traceback": "Traceback (most recent call last):\n  <b>RuntimeError</b>: CUDA out of memory",
    }


def _remedies(plan):
    """bf16 in place of fp32, on one and on two ranks: what helped, and what did not."""
    first = {(p.precision, p.ranks_per_node): p.id for p in plan if p.workload == "image" and p.repeat == 0}
    for ranks, gain in ((1, 0.4), (2, -0.05)):
        yield {
            "point_id": first["fp32", ranks],
            "remedied_id": first["bf16", ranks],
            "round": 1,
            "kind": "tensor_cores_unused",
            "remedy": '{"precision": "bf16"}',
            "predicted": 0.35,
            "before_ms": 6.0,
            "after_ms": 6.0 * (1 - gain),
            "gain": gain,
            "verdict": "helped" if gain > 0 else "did_not_help",
        }


def made_up() -> dataset.Tables:
    plan = list(_plan())
    rows = [_point(index, point) for index, point in enumerate(plan)]
    ok = [point for point, row in zip(plan, rows, strict=True) if row["status"] == "ok"]
    makers = {"steps": _steps, "breakdown": _breakdown, "timeline": _timeline, "host_samples": _samples}
    makers["diagnoses"] = _diagnoses
    raw = {name: [row for point in ok for row in make(point)] for name, make in makers.items()}
    raw |= {
        "remedies": list(_remedies(plan)),
        "phases": [phase for row in rows for phase in _phases(row)],
        "points": rows,
        "failures": [_failure(row) for row in rows if row["status"] == "failed"],
    }
    frames = {name: pl.DataFrame(records, infer_schema_length=None) for name, records in raw.items()}
    return dataset.Tables({n: column.conform(frame, schemas.TABLES[n]).collect() for n, frame in frames.items()})


def write(tables: dataset.Tables, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in schemas.TABLES:
        tables[name].write_parquet(folder / f"{name}.parquet")
    return folder


def texts(figure):
    return " ".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))
