"""Nsight Systems exports (SQLite, or a folder of one Parquet file a table) as event tables.

Read by column name, for export schemas 3.7 to 3.28 and, as far as their columns are known, later ones. Times are moved
to UTC where the export says when its session began. Process and thread ids are unpacked from globalPid and globalTid:
process in bits 24 to 47, thread below.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

import polars as pl

from nightsweep.analysis.readers.nsys import payloads
from nightsweep.analysis.readers.nsys.export_fields import SOURCES, Text
from nightsweep.analysis.readers.nsys.nvtx import Marks
from nightsweep.analysis.readers.nsys.source import EXPECTED, WHOLE, Source, open_export
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.events import DEVICES, EVENTS, Trace

KNOWN_MAJOR = 3
TRACES = (".json", ".json.gz", ".sqlite", ".nsys-rep")
_LATEST_NS = 2**62
_STRINGS, _SESSION, _EXPORT = "StringIds", "TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT"
DIRECTIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
OPERATIONS = {
    0: "Unknown", 1: "Host-to-Device", 2: "Device-to-Host", 3: "Host-to-Array", 4: "Array-to-Host", 5: "Array-to-Array",
    6: "Array-to-Device", 7: "Device-to-Array", 8: "Device-to-Device", 9: "Host-to-Host", 10: "Peer-to-Peer",
    11: "Unified Host-to-Device", 12: "Unified Device-to-Host", 13: "Unified Device-to-Device",
}  # fmt: skip
"""copyKind, as ENUM_CUDA_MEMCPY_OPER has it."""
MEMORY = {0: "pageable", 1: "pinned", 2: "device", 3: "array", 4: "managed", 5: "device", 6: "managed"}
SYNCS = {1: "event", 2: "stream wait event", 3: "stream", 4: "context"}


def read(path: Path) -> Trace:
    """Read an export.

    Raises:
        ValueError: in one line, where the path holds none.
    """
    source = open_export(path)
    known = {_STRINGS, _SESSION, *(table for table, _ in SOURCES.values())}
    if not any(name in known or re.match("META_DATA_|TARGET_INFO_", name) for name in source.columns):
        traces = sorted(own for own in path.iterdir() if own.name.endswith(TRACES)) if path.is_dir() else []
        if traces:
            raise ValueError(f"{path}: a folder of traces; the traces were expected, such as {traces[0]}")
        raise ValueError(f"{path}: not an Nsight Systems export: it has none of its tables; {EXPECTED}")
    facts = _facts(source)
    strings = source.load(_STRINGS, ["id", Text("value")]).unique("id").with_columns(pl.col("value").cast(pl.String))
    epoch, strange = _epoch(source)
    strange += _schema_problems(facts)
    events = {kind: column.empty(columns) for kind, columns in EVENTS.items()}

    def load(kind: str) -> None:
        if kind == "nvtx":
            table, fields = SOURCES[kind]
            marks = Marks(strings)
            ranges = source.load(table, fields, marks.ranges)
            events[kind] = _finish(kind, marks.complete(ranges), epoch)
            events["nccl_calls"] = _finish("nccl_calls", _nccl_calls(source, marks.domains, strings), epoch)
        else:
            events[kind] = _finish(kind, _events(source, kind, strings), epoch)

    for kind, (table, _) in SOURCES.items():
        if table in source.columns:
            load(kind)
    events["counters"] = _counters(source, events["counters"])
    absent = frozenset(kind for kind, (table, _) in SOURCES.items() if table not in source.columns)
    devices, damage = _devices(source), source.damage
    cut = not damage.tables.isdisjoint({WHOLE, _STRINGS, *(table for table, _ in SOURCES.values())})
    return Trace(fill_process(events), devices, absent, (*strange, *damage.problems), facts, cut=cut)


def _facts(source: Source) -> dict[str, str]:
    """Format, schema version of the export, and version of nsys."""
    facts = {"format": "nsys"}
    wanted = {
        "EXPORT_SCHEMA_VERSION": "schema",
        "EXPORT_PRODUCT_VERSION": "nsys",
        "EXPORT_SCHEMA_VERSION_MAJOR": "major",
    }
    for name, value in source.load(_EXPORT, [Text("name"), Text("value")]).cast(pl.String).iter_rows():
        if name in wanted and value:
            facts[wanted[name]] = value
    return facts


def _schema_problems(facts: Mapping[str, str]) -> list[str]:
    major = facts.get("major") or facts.get("schema", "").partition(".")[0]
    if major.isdigit() and int(major) != KNOWN_MAJOR:
        return [f"export schema {facts.get('schema', major)} is not of the known kind {KNOWN_MAJOR}.x"]
    return []


def _epoch(source: Source) -> tuple[int, list[str]]:
    """When the session began, UTC ns, 0 where the export does not say; and what is strange about it."""
    found: int = source.load(_SESSION, ["utcEpochNs"])["utcEpochNs"].max() or 0  # type: ignore[assignment]
    if 0 <= found < _LATEST_NS:
        return found, []
    return 0, [f"{_SESSION}: {found} is no time: times are those of the trace's own clock"]


def _finish(kind: str, frame: pl.DataFrame, epoch: int) -> pl.DataFrame:
    made = column.conform(frame, EVENTS[kind])
    return made.with_columns(pl.col("start_ns", "end_ns") + epoch).collect()


def _look_up(frame: pl.DataFrame, strings: pl.DataFrame, key: str) -> pl.Series:
    """The strings of a column of their ids."""
    ids = strings.select(pl.col("id").cast(frame[key].dtype).alias(key), "value")
    return frame.select(key).join(ids, on=key, how="left", maintain_order="left")["value"]


def _label(kind: str, labels: Mapping[int, str], default: str) -> pl.Expr:
    known = pl.col(kind).replace_strict(labels, default=default, return_dtype=pl.String)
    return pl.when(pl.col(kind).is_not_null()).then(known)


_FREED = pl.col("memoryOperationType") == 1
_COLUMNS: dict[str, dict[str, str | pl.Expr]] = {
    "kernels": {"registers": "registersPerThread", "graph": "graphNodeId"},
    "graphs": {"name": pl.format("CUDA graph {}", "graphId"), "graph": "graphId"},
    "copies": {
        "name": _label("copyKind", OPERATIONS, "Unknown"),
        "direction": _label("copyKind", DIRECTIONS, "other"),
        "source": _label("srcKind", MEMORY, "unknown"),
        "target": _label("dstKind", MEMORY, "unknown"),
    },
    "memsets": {"name": pl.lit("Memset")},
    "runtime": {},
    "syncs": {
        "name": _label("syncType", SYNCS, "unknown"),
        # all ones: a wait for no stream in particular
        "stream": pl.when(pl.col("stream") < 2**32 - 1).then("stream"),
    },
    "allocations": {
        "end_ns": "start_ns",
        "name": pl.when(_FREED).then(pl.lit("free")).otherwise(pl.lit("allocate")),
        "bytes": pl.when(_FREED).then(-pl.col("bytes")).otherwise("bytes"),
        "memory": _label("memKind", MEMORY, "unknown"),
    },
    # The device is in the low byte of the type, as NVIDIA's own recipes have it; names follow in _counters.
    "counters": {
        "start_ns": "timestamp",
        "end_ns": "timestamp",
        "name": pl.format("{} {}", "typeId", "metricId"),
        "device": pl.col("typeId") & 0xFF,
        "value": pl.col("value").cast(pl.Float64),
    },
}
"""What the events of each kind have, of the columns of their table."""


def _events(source: Source, kind: str, strings: pl.DataFrame) -> pl.DataFrame:
    table, fields = SOURCES[kind]
    frame = source.load(table, fields)
    times = {"start": "start_ns", "end": "end_ns"}
    ids = {"deviceId": "device", "streamId": "stream", "correlationId": "correlation"}
    made = frame.rename(times | ids, strict=False).with_columns(**_COLUMNS[kind])
    if kind == "runtime":  # the API's version is no part of its name: cudaLaunchKernel_v7000
        plain = strings.with_columns(pl.col("value").str.replace(r"^(cu\w+?)_v\d+$", "$1"))
        return made.with_columns(name=_look_up(frame, plain, "nameId"))
    if kind == "kernels":
        name = _look_up(frame, strings, "demangledName")
        if name.null_count():
            name = name.fill_null(_look_up(source.load(table, ["shortName"]), strings, "shortName"))
        return made.with_columns(name=name)
    return made


def _nccl_calls(source: Source, domains: Collection[int], strings: pl.DataFrame) -> pl.DataFrame:
    """Calls of NCCL, which are ranges of a library's domain, with the values of their payloads."""
    wanted = source.rows("NVTX_EVENTS", payloads.EVENT_COLUMNS, "domainId", sorted(domains)) if domains else None
    if wanted is None or wanted.is_empty():
        return column.empty(EVENTS["nccl_calls"])
    entries = source.load("NVTX_PAYLOAD_SCHEMA_ENTRIES", [*("domainId", "schemaId", "type", "offset"), Text("name")])
    return payloads.calls(wanted, strings, entries)


def _counters(source: Source, readings: pl.DataFrame) -> pl.DataFrame:
    """Readings with the names of their counters, whose ids differ from export to export."""
    named = source.load("TARGET_INFO_GPU_METRICS", ["typeId", "metricId", Text("metricName")])
    names = named.select(name=pl.format("{} {}", "typeId", "metricId"), metric=pl.col("metricName").cast(pl.String))
    both = readings.join(names.unique("name"), on="name", how="left", maintain_order="left")
    return both.with_columns(name=pl.coalesce("metric", "name")).drop("metric")


def _devices(source: Source) -> pl.DataFrame:
    """The CUDA devices; the GPUs in their order where the export does not map them to CUDA devices."""
    numbers = {
        "smCount": "sm_count", "maxWarpsPerSm": "warps_per_sm", "maxBlocksPerSm": "blocks_per_sm",
        "maxRegistersPerSm": "registers_per_sm", "maxShmemPerSm": "shared_bytes_per_sm", "totalMemory": "memory_bytes",
        "memoryBandwidth": "memory_bytes_per_s", "computeMajor": "major", "computeMinor": "minor", "id": "gpuId",
    }  # fmt: skip
    found = source.load("TARGET_INFO_GPU", [*numbers, Text("name"), Text("uuid")]).rename(numbers)
    ordinals = source.load("TARGET_INFO_CUDA_DEVICE", ["gpuId", "cudaId"]).unique()
    if ordinals.is_empty():
        found = found.with_columns(device="gpuId")
    else:
        found = found.join(ordinals, on="gpuId").rename({"cudaId": "device"})
    uuid = pl.col("uuid").cast(pl.String)
    named = found.with_columns(
        uuid=pl.when(uuid != "").then(pl.concat_str(pl.lit("GPU-"), uuid.str.strip_prefix("GPU-"))),
        compute_capability=pl.format("{}.{}", "major", "minor"),
    )
    return column.conform(named, DEVICES).sort("device").collect()


def fill_process(events: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Fill in the process of events on the device that have none, where only one process made calls."""
    callers = events["runtime"]["process"].drop_nulls().unique()
    if len(callers) != 1:
        return events
    fill = pl.col("process").fill_null(callers[0])
    kinds = ("kernels", "graphs", "copies", "memsets", "syncs")
    return events | {k: events[k].with_columns(fill) for k in kinds}
