"""Traces of the PyTorch profiler (Kineto's JSON, plain or gzipped; of CUDA and ROCm) as event tables.

Times are exact to the ns, and UTC unless the file is cut off before it says when its clock began (`problems` say so
then). Events on the device have the process of the runtime's calls where there is one. On ROCm, what was launched
before the window has no sizes, kernels of a graph look like others, and pageable memory like pinned.

A table without rows is absent unless the trace shows that its events were recorded:

- kernels, copies, memsets and runtime are one activity of the profiler: recorded if any of them has rows;
- operators and nvtx are another, likewise;
- nccl_calls: if operators are there, and no NCCL kernel is without its call;
- allocations: if the trace says `profile_memory`;
- syncs and counters: only by their rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from nightsweep.analysis.readers.kineto import collective_args
from nightsweep.analysis.readers.kineto.event_columns import EventColumns
from nightsweep.analysis.readers.kineto.stream import Document
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.events import DEVICES, EVENTS, NCCL_KERNEL, Trace

_GROUPS = (("kernels", "copies", "memsets", "runtime"), ("operators", "nvtx"))
"""Tables that are recorded together."""
_INSTANT = ("allocations", "counters")
_UTC_NS = 10**18
"""A time after this (2001) is one since 1970: older traces have no base to add."""
_TOO_LARGE = 2**62
_COPY = r"^Memcpy (\w+)(?: \((\w+)[\w ]* -> (\w+)[\w ]*\))?"
_DIRECTIONS = ("HtoD", "DtoH", "DtoD", "PtoP")
_MEMORIES = ("pageable", "pinned", "device", "array", "managed")
_FACTS = ("schemaVersion", "trace_id", "record_shapes", "with_stack", "with_flops", "with_modules", "profile_memory")
_FACTS_OF_JOB = ("backend", "world_size", "nccl_version")


def read(path: Path) -> Trace:
    """Read a Kineto trace.

    Raises:
        ValueError: where the file holds none.
    """
    document, columns = Document(path), EventColumns()
    for block in document.blocks():
        columns.add(block)
    found, problems = _add_times(columns.tables(), document)
    job = _mapping(document.metadata.get("distributedInfo"))
    rank = pl.lit(_number(job.get("rank")), dtype=pl.Int64)
    events = {
        kind: column.conform(_narrow(frame.with_columns(rank=rank), kind), EVENTS[kind]).collect()
        for kind, frame in _events(found).items()
    }
    return Trace(
        events={kind: column.empty(columns) for kind, columns in EVENTS.items()} | events,
        devices=_devices(document.metadata).with_columns(rank=rank),
        absent=_absent_tables(events, document.metadata),
        problems=(*document.problems, *problems),
        facts=_facts(document.metadata, job),
        cut=document.cut,
    )


def _narrow(frame: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Fit numbers into columns of 32 bits.

    Thread ids may be addresses, as some tools write them, and are cut to their lower bits; other numbers that are too
    large are nonsense, and become null.
    """
    small = [name for name, column in EVENTS[kind].items() if column.dtype == pl.Int32 and name in frame.columns]
    folded = [pl.col(name) % 2**31 for name in small if name in ("process", "thread")]
    return frame.with_columns(folded).with_columns(pl.col(small).cast(pl.Int32, strict=False))


def _add_times(found: Mapping[str, pl.DataFrame], document: Document) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """The events that have a time, and a line for each kind that had others."""
    recorded = document.metadata.get("baseTimeNanoseconds")
    base = _number(recorded) or 0
    out, problems = {}, []
    for kind, frame in found.items():
        duration = pl.lit(0, dtype=pl.Int64) if kind in _INSTANT else pl.col("duration_ns")
        start = pl.col("start_ns") + base
        timed = frame.with_columns(start_ns=start, end_ns=start + duration)
        out[kind] = timed.filter(pl.col("start_ns").is_not_null(), pl.col("end_ns") >= pl.col("start_ns"))
        if out[kind].height < frame.height and kind in EVENTS:
            lost = frame.height - out[kind].height
            problems.append(f"{kind}: events without a start or with no or a negative duration, left out: {lost}")
    starts = pl.concat([frame["start_ns"] for frame in out.values()])
    if recorded is None and (starts < _UTC_NS).any():
        problems.append("baseTimeNanoseconds is not there: times are those of the trace's own clock")
    return out, problems


def _events(found: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    # Where others have their process, events on the device have the device.
    callers = found["runtime"]["process"].drop_nulls().unique()
    process = pl.lit(callers[0] if len(callers) == 1 else None, dtype=pl.Int64)
    kernels = _kernels(found["kernels"], found["runtime"]).with_columns(process=process)
    stream = pl.when(pl.col("stream") >= 0).then("stream")  # -1: of the whole device
    return {
        "kernels": kernels,
        "copies": _copies(found["copies"]).with_columns(process=process),
        "memsets": found["memsets"].with_columns(process=process),
        "runtime": found["runtime"],
        "syncs": found["syncs"].with_columns(process=process, stream=stream),
        "nvtx": found["nvtx"].with_columns(domain=pl.lit(None, dtype=pl.String), style=pl.lit("annotation")),
        "nccl_calls": collective_args.calls(kernels, found["collectives"]),
        "allocations": _allocations(found["allocations"]),
        "counters": found["counters"],
        "operators": found["operators"],
    }


def _kernels(frame: pl.DataFrame, runtime: pl.DataFrame) -> pl.DataFrame:
    # This call of ROCm takes its grid in threads, and that is what the trace has then.
    in_threads = runtime.filter(pl.col("name") == "hipExtModuleLaunchKernel")["correlation"].implode()
    size = pl.when(pl.col("correlation").is_in(in_threads)).then("threads").otherwise(1)
    graph = pl.coalesce(pl.col("graph", "node").replace(0, None))
    blocks = (pl.col("blocks") / size).ceil().cast(pl.Int64)
    return frame.with_columns(blocks=blocks, shared_bytes="shared", graph=graph)


def _copies(frame: pl.DataFrame) -> pl.DataFrame:
    direction = pl.col("name").str.extract(_COPY, 1)
    memory = {n: pl.col("name").str.extract(_COPY, i).str.to_lowercase() for i, n in ((2, "source"), (3, "target"))}
    return frame.with_columns(
        pl.when(direction.is_in(_DIRECTIONS)).then(direction).otherwise(pl.lit("other")).alias("direction"),
        *(pl.when(m.is_in(_MEMORIES)).then(m).otherwise(pl.lit("unknown")).alias(n) for n, m in memory.items()),
    )


def _allocations(frame: pl.DataFrame) -> pl.DataFrame:
    on_device = pl.col("device_type") > 0  # else of the CPU, whose allocator gives pageable memory
    return frame.with_columns(
        device=pl.when(on_device).then("device_id"),
        correlation=pl.lit(None, dtype=pl.Int64),
        bytes="allocated",
        memory=on_device.replace_strict({True: "device", False: "pageable"}, default="unknown", return_dtype=pl.String),
    )


def _absent_tables(events: Mapping[str, pl.DataFrame], metadata: Mapping[str, Any]) -> frozenset[str]:
    """The tables that were not recorded, by the rules above."""
    have = {kind for kind, frame in events.items() if frame.height}
    recorded = {kind for group in _GROUPS if have & set(group) for kind in group}
    nccl = events["kernels"]["name"].str.contains(NCCL_KERNEL).any()
    if "operators" in have and not nccl:
        recorded.add("nccl_calls")
    if metadata.get("profile_memory"):
        recorded.add("allocations")
    # Kineto takes graphs apart: what ran in them is among the kernels.
    return frozenset(EVENTS) - recorded - have - {"graphs"}


def _devices(metadata: Mapping[str, Any]) -> pl.DataFrame:
    listed = metadata.get("deviceProperties")
    rows = [_device(device) for device in listed if isinstance(device, dict)] if isinstance(listed, list) else []
    return pl.DataFrame(rows, schema=column.schema(DEVICES), strict=False)


def _device(properties: Mapping[str, Any]) -> dict[str, Any]:
    threads, major, minor = (
        _number(properties.get("maxThreadsPerMultiprocessor")),
        properties.get("computeMajor"),
        properties.get("computeMinor"),
    )
    shared = properties.get(
        "sharedMemPerMultiprocessor", properties.get("maxSharedMemoryPerMultiProcessor")
    )  # CUDA's, ROCm's
    return {
        "device": _number(properties.get("id")),
        "name": properties.get("name") or None,
        "sm_count": _number(properties.get("numSms")),
        "warps_per_sm": threads // (_number(properties.get("warpSize")) or 32) if threads else None,
        "registers_per_sm": _number(properties.get("regsPerMultiprocessor")),
        "shared_bytes_per_sm": _number(shared),
        "memory_bytes": _number(properties.get("totalGlobalMem")),
        "compute_capability": None if major is None or minor is None else f"{major}.{minor}",
    }


def _facts(metadata: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, str]:
    facts = {k: v for k, v in metadata.items() if k in _FACTS or k.endswith("_version")}
    facts |= {k: job[k] for k in _FACTS_OF_JOB if k in job}
    return {"format": "kineto"} | {k: str(v) for k, v in facts.items() if isinstance(v, str | int | float)}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < _TOO_LARGE else None
