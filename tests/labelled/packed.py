"""A Kineto trace as columns, which compress to a fifth of what its events do.

Times of the device are exact; the host's are rounded down to UNIT_NS, far less than the tracer adds to each call. Of
all operators but those of NAMED only how many began between two calls of CUDA is kept: more is not read.

A file is a line of JSON and after it the columns, all compressed. Events are in the order of their threads and streams,
and in each of their times, so that a column has like values side by side: the time since the event before has ended,
how long it took, which of the known names, places and args it has, and the numbers that grow, where it has one. Of a
column's values all lowest bytes come first, then all second ones, and so on.
"""

from __future__ import annotations

import json
import lzma
import shutil
from bisect import bisect_right
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from nightsweep.analysis.metrics.steps import loader
from nightsweep.analysis.readers.kineto.event_columns import _KINDS, COMMUNICATION, Args
from tests.labelled.kept import unpack as unpack_files

UNIT_NS = 128
"""A power of two, so that bytes which rounding has emptied are zeros."""
TOP = ("schemaVersion", "deviceProperties", "baseTimeNanoseconds", "displayTimeUnit")
DISTRIBUTED = ("rank", "world_size", "backend")
ARGS = {field.encode_name for field in msgspec.structs.fields(Args)}
EXTERNAL = "External id"
COUNTED = ("correlation", EXTERNAL)
"""Args that grow from event to event; the others are the same of many events."""
OPERATOR = "op"
NAMED = (COMMUNICATION, loader.SEED)
"""Operators of collectives, and the draw of a seed for new workers of a loader, kept from the half `thirteenth` on."""
CALLS = ("cuda_runtime", "cuda_driver")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "pb": 0}]
_THOUSANDTHS = pl.Series([f".{number:03d}" for number in range(1000)])
Ints = npt.NDArray[np.int64]


def pack(text: bytes) -> bytes:
    """A trace's JSON, packed."""
    trace = json.loads(text, parse_float=Decimal)
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X" and event.get("cat") in _KINDS]
    for event in events:
        start, end = (int(1000 * time) for time in (event["ts"], event["ts"] + event.get("dur", 0)))
        unit = _unit(event["cat"])
        event |= {"start": start // unit * unit, "end": end // unit * unit}
    edges = sorted({event[edge] for event in events if event["cat"] in CALLS for edge in ("start", "end")})
    for event in filter(_is_plain, events):
        before = bisect_right(edges, event["start"])
        event["start"] = event["end"] = edges[before - 1] if before else event["start"]
        event |= {"name": OPERATOR, "args": {}}
    joined = {event.get("args", {}).get(EXTERNAL) for event in events if event["name"] == COMMUNICATION}
    for event in events:  # only a collective's operator is looked for by its external id
        own = {name: value for name, value in event.get("args", {}).items() if name in ARGS}
        if own.get(EXTERNAL) not in joined:
            own.pop(EXTERNAL, None)
        event["args"] = own
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))  # of what rounding makes alike, the outer first
    lanes, _ = _codes([_lane(event) for event in events])
    order = np.lexsort((_ints(event["start"] for event in events), lanes))
    events = [events[place] for place in order]
    where, places = _codes([_lane(event) for event in events])
    what, names = _codes([[event["cat"], event["name"]] for event in events])
    args, known = _codes([{k: v for k, v in event["args"].items() if k not in COUNTED} for event in events])
    units = _ints(_unit(event["cat"]) for event in events)
    start, end = (_ints(event[edge] for event in events) for edge in ("start", "end"))
    gap = start - np.where(_is_first(where), 0, np.roll(end, 1))
    assert not (gap % units).any() and not ((end - start) % units).any()
    columns = {"gap": gap // units, "dur": (end - start) // units, "what": what, "where": where, "args": args}
    for name in COUNTED:
        values = _ints(event["args"][name] for event in events if name in event["args"])
        columns |= {f"has {name}": _ints(name in event["args"] for event in events), name: np.diff(values, prepend=0)}
    packed = {name: _bytes(values) for name, values in columns.items()}
    info = {key: value for key, value in trace.get("distributedInfo", {}).items() if key in DISTRIBUTED}
    head = {
        "top": {key: trace[key] for key in TOP if key in trace} | {"distributedInfo": info},
        "known": {"what": names, "where": places, "args": known},
        "columns": {name: [len(columns[name]), len(content)] for name, content in packed.items()},
    }
    line = json.dumps(head, separators=(",", ":"), default=float).encode()
    return lzma.compress(line + b"\n" + b"".join(packed.values()), filters=_FILTERS)


def unpack(packed: bytes) -> bytes:
    """The trace's JSON again, its events in the order of their times."""
    line, _, content = lzma.decompress(packed).partition(b"\n")
    head = msgspec.json.decode(line)
    columns: dict[str, Ints] = {}
    for name, (count, size) in head["columns"].items():
        columns[name], content = _values(content[:size], count), content[size:]
    known, what, where = head["known"], columns["what"], columns["where"]
    units = np.array([_unit(cat) for cat, _ in known["what"]], np.int64)[what]
    dur = columns["dur"] * units
    end = np.cumsum(columns["gap"] * units + dur)
    firsts = np.flatnonzero(_is_first(where))
    before = np.append(0, end)[firsts]
    start = end - dur - np.repeat(before, np.diff(np.append(firsts, len(where))))
    numbers = []
    for name in COUNTED:
        has = columns[f"has {name}"] == 1
        full = np.full(len(where), -1)
        full[has] = np.cumsum(columns[name])
        numbers.append(full)
    whats = [f'{{"ph": "X", "cat": {json.dumps(cat)}, "name": {json.dumps(name)}' for cat, name in known["what"]]
    wheres = [f', "pid": {json.dumps(pid)}, "tid": {json.dumps(tid)}, "args": {{' for pid, tid, *_ in known["where"]]
    texts = [json.dumps(args)[1:-1] or None for args in known["args"]]
    order = np.argsort(start, kind="stable")
    frame = pl.DataFrame(
        {
            "what": _texts(whats)[what[order]],
            "where": _texts(wheres)[where[order]],
            "args": _texts(texts)[columns["args"][order]],
            **{name: column[order] for name, column in zip(COUNTED, numbers, strict=True)},
            "ts": start[order] // 1000,
            "ts_ns": _THOUSANDTHS[start[order] % 1000],
            "dur": dur[order] // 1000,
            "dur_ns": _THOUSANDTHS[dur[order] % 1000],
        }
    )
    ids = [pl.when(pl.col(name) >= 0).then(pl.concat_str(pl.lit(f'"{name}": '), name)) for name in COUNTED]
    inner = pl.concat_str("args", *ids, separator=", ", ignore_nulls=True)
    begun = (pl.lit('}, "ts": '), "ts", "ts_ns")
    line = pl.concat_str("what", "where", inner, *begun, pl.lit(', "dur": '), "dur", "dur_ns", pl.lit("}"))
    events = frame.select(line.str.join(",\n")).item()
    return f'{json.dumps(head["top"])[:-1]}, "traceEvents": [\n{events}\n]}}'.encode()


def _texts(values: list[str | None]) -> pl.Series:
    return pl.Series(values, dtype=pl.String)


def unpacked(kept: Path, folder: Path) -> Path:
    """A copy of a kept run's folder in this one, as pairs.py leaves it, but with traces that are not compressed."""
    target = folder / kept.name
    shutil.copytree(kept, target)
    for path in target.rglob("*.xz"):  # traces
        path.with_suffix(".json").write_bytes(unpack(path.read_bytes()))
        path.unlink()
    return unpack_files(target)


def _is_plain(event: dict[str, Any]) -> bool:
    """Whether it is an operator without a name that is read."""
    return bool(event["cat"] == "cpu_op" and event["name"] not in NAMED)


def _lane(event: dict[str, Any]) -> list[Any]:
    """Its thread or stream: a process in a container may have the number of a device."""
    return [event["pid"], event["tid"], _unit(event["cat"])]


def _ints(values: Iterable[int]) -> Ints:
    return np.array(list(values), np.int64)


def _unit(category: str) -> int:
    return 1 if category in DEVICE else UNIT_NS


def _is_first(lanes: Ints) -> npt.NDArray[np.bool_]:
    """Of events in the order of their lanes: whether it is its lane's first."""
    return np.diff(lanes, prepend=-1) != 0


def _bytes(values: Ints) -> bytes:
    """All lowest bytes, all second ones, and so on up to the last that is used; small where values are near 0."""
    planes = ((values << 1) ^ (values >> 63)).astype("<u8").view(np.uint8).reshape(-1, 8).T
    return b"".join(planes[place].tobytes() for place in range(8) if planes[place:].any())


def _values(content: bytes, count: int) -> Ints:
    planes = np.zeros((8, count), np.uint8)
    used = np.frombuffer(content, np.uint8).reshape(-1, count) if content else planes[:0]
    planes[: len(used)] = used
    zigzag = np.ascontiguousarray(planes.T).view("<u8").ravel()
    return (zigzag >> np.uint64(1)).astype(np.int64) ^ -(zigzag & np.uint64(1)).astype(np.int64)


def _codes(values: list[Any]) -> tuple[Ints, list[Any]]:
    """Of each place which of the different values it has, and these."""
    places: dict[str, int] = {}
    codes = [places.setdefault(json.dumps(value, default=float), len(places)) for value in values]
    return _ints(codes), [json.loads(text) for text in places]
