"""Events of a Kineto trace as columns, block by block: no event stays a Python object longer than its block.

Numbers come as JSON numbers or as text ("12"), and any field may be missing: what cannot be understood is null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import numpy as np
import polars as pl

from nightsweep.analysis.readers.kineto.stream import Event

_T = TypeVar("_T")

ALLOCATOR = ("Total Allocated", "Total Reserved")
"""What PyTorch's allocator records with each allocation, as counters."""
COMMUNICATION = "record_param_comms"
"""The operator whose args hold a collective's size."""
_KINDS = {
    "kernel": "kernels",
    "gpu_memcpy": "copies",
    "gpu_memset": "memsets",
    "cuda_runtime": "runtime",  # on ROCm too
    "cuda_driver": "runtime",
    "cuda_sync": "syncs",
    "user_annotation": "nvtx",
    "cpu_op": "operators",
    # until PyTorch 1.11
    "Kernel": "kernels",
    "Memcpy": "copies",
    "Memset": "memsets",
    "Runtime": "runtime",
    "Operator": "operators",
}
_OLD_ANNOTATION = re.compile(r"ProfilerStep#\d+$|enumerate\(DataLoader\)|Optimizer\.")
"""Until PyTorch 1.11 annotations were operators, too. These are PyTorch's own; others cannot be told from operators."""


class Args(msgspec.Struct, gc=False):
    """The args of events that are read."""

    correlation: Any = None
    device: Any = None
    copies_on: Any = msgspec.field(name="inDevice", default=None)
    stream: Any = None
    bytes: Any = None
    grid: Any = None
    block: Any = None
    registers: Any = msgspec.field(name="registers per thread", default=None)
    shared: Any = msgspec.field(name="shared memory", default=None)
    graph: Any = msgspec.field(name="graph id", default=None)
    node: Any = msgspec.field(name="graph node id", default=None)
    external: Any = msgspec.field(name="External id", default=None)
    collective: Any = msgspec.field(name="Collective name", default=None)
    elements: Any = msgspec.field(name="In msg nelems", default=None)
    dtype: Any = None
    group: Any = msgspec.field(name="Process Group Name", default=None)
    ranks: Any = msgspec.field(name="Group size", default=None)
    allocated: Any = msgspec.field(name="Bytes", default=None)
    device_id: Any = msgspec.field(name="Device Id", default=None)
    device_type: Any = msgspec.field(name="Device Type", default=None)


_COLLECTIVE = ("external", "collective", "elements", "dtype", "group", "ranks")
_ON_DEVICE = ("device", "stream", "correlation")
_COLUMNS: dict[str, tuple[str, ...]] = {
    "kernels": (*_ON_DEVICE, "registers", "shared", "graph", "node", "blocks", "threads", *_COLLECTIVE),
    "copies": (*_ON_DEVICE, "bytes"),
    "memsets": (*_ON_DEVICE, "bytes"),
    "runtime": ("correlation",),
    "syncs": _ON_DEVICE,
    "nvtx": (),
    "operators": (),
    "collectives": _COLLECTIVE,
    "allocations": ("allocated", "device_id", "device_type"),
}
"""The columns of each table that come from args; collectives are the operators that describe one."""
_TEXT = ("collective", "dtype", "group")
_ALL_ARGS = msgspec.json.Decoder(list[Args | None])
_NO_ARGS = Args()
_SMALL = 2**20
"""The product of three numbers below this fits in 64 bits."""


class EventColumns:
    """The events of a trace by table, as columns; they are added block by block."""

    def __init__(self) -> None:
        self._frames: dict[str, list[pl.DataFrame]] = {k: [_frame(k, [])] for k in _COLUMNS} | {
            "counters": [_counters([])]
        }

    def add(self, block: Sequence[Event]) -> None:
        """Add the events of a block."""
        chosen: dict[str, list[Event]] = {kind: [] for kind in (*_COLUMNS, "counters")}
        add_to: dict[str | None, Callable[[Event], None]] = {cat: chosen[kind].append for cat, kind in _KINDS.items()}
        of_pytorch = _OLD_ANNOTATION.match
        add_to["Operator"] = lambda e: chosen["nvtx" if of_pytorch(e.name or "") else "operators"].append(e)
        others: list[Event] = []
        for event in block:
            if event.ph != "X":
                others.append(event)
            elif add := add_to.get(event.cat):
                add(event)
        chosen["collectives"] += [e for e in block if e.name == COMMUNICATION and e.ph == "X" and e.cat in _KINDS]
        chosen["allocations"] += [e for e in others if e.ph == "i" and e.name == "[memory]"]
        chosen["counters"] += [e for e in others if e.ph == "C" or (e.ph == "i" and e.name == "[memory]")]
        for kind, events in chosen.items():
            if events:
                self._frames[kind].append(_counters(events) if kind == "counters" else _frame(kind, events))

    def tables(self) -> dict[str, pl.DataFrame]:
        """Every table, with start_ns (on the trace's clock), duration_ns and name; null where the trace has none."""
        return {kind: pl.concat(frames) for kind, frames in self._frames.items()}


def _frame(kind: str, events: list[Event]) -> pl.DataFrame:
    columns = _common(events)
    if _COLUMNS[kind]:
        args = _args(events)
        for name in _COLUMNS[kind]:
            columns[name] = _series(_VALUES[name](args), pl.String if name in _TEXT else pl.Int64)
    return pl.DataFrame(columns)


def _common(events: list[Event]) -> dict[str, pl.Series]:
    return {
        "start_ns": _nanoseconds([e.ts for e in events]),
        "duration_ns": _nanoseconds([e.dur for e in events]),
        "name": _series([e.name for e in events], pl.String),
        "process": _series([e.pid for e in events], pl.Int64),
        "thread": _series([e.tid for e in events], pl.Int64),
    }


def _counters(events: list[Event]) -> pl.DataFrame:
    """One row a value: those of the allocator of an allocation on a device, and each of a counter's args."""
    rows: list[tuple[Event, str, Any, Any]] = []
    for event in events:
        args = _decode(event.args, dict[str, Any]) or {}
        names = args if event.ph == "C" else [n for n in ALLOCATOR if n in args and args.get("Device Type")]
        title = f"{event.name}: " if event.ph == "C" else ""
        rows += [(event, f"{title}{name}", args.get("Device Id"), args[name]) for name in names]
    columns = _common([event for event, *_ in rows]) | {
        "name": _series([name for _, name, _, _ in rows], pl.String),
        "device": _series([device for _, _, device, _ in rows], pl.Int64),
        "value": _series([value for *_, value in rows], pl.Float64),
    }
    return pl.DataFrame(columns)


def _decode(text: msgspec.Raw, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _args(events: list[Event]) -> list[Args]:
    texts: list[bytes | msgspec.Raw] = [e.args for e in events]
    try:
        found = _ALL_ARGS.decode(b"[" + b",".join(texts) + b"]")
    except (msgspec.MsgspecError, ValueError, RecursionError):  # some of them are missing, or no object
        found = [_decode(event.args, Args) for event in events]
    return [args or _NO_ARGS for args in found]


def _nanoseconds(texts: list[msgspec.Raw]) -> pl.Series:
    """Times in us, which are decimals of any size, as exact ns."""
    joined = b",".join(texts)
    if _have_three_decimals(joined):  # as the profiler writes them: without their point they are ns
        return pl.Series(np.fromstring(joined.replace(b".", b"").decode(), dtype=np.int64, sep=","))
    decimals = pl.Series([str(t, "latin-1") for t in texts], dtype=pl.String).str.strip_chars('"')
    return decimals.cast(pl.Decimal(38, 3), strict=False).to_physical().cast(pl.Int64, strict=False)


def _have_three_decimals(joined: bytes) -> bool:
    """Whether these numbers, with a comma between two, are 1 to 15 digits, a point and 3 digits each."""
    text = np.frombuffer(joined + b",", np.uint8)
    points, ends = np.flatnonzero(text == ord(".")), np.flatnonzero(text == ord(","))
    if len(points) != len(ends) or (points + 4 != ends).any():
        return False
    before = np.diff(points, prepend=-5) - 5
    digits = np.count_nonzero((text >= ord("0")) & (text <= ord("9")))
    return bool(before.min() >= 1 and before.max() <= 15 and digits + 2 * len(ends) == len(text))


def _series(values: list[Any], dtype: type[pl.DataType]) -> pl.Series:
    try:
        return pl.Series(values, dtype=dtype)
    except (TypeError, OverflowError):
        return pl.Series(values, dtype=dtype, strict=False)


def _products(sizes: list[Any]) -> list[int | None]:
    """The number of elements of each [x, y, z]."""
    try:
        counts = np.array(sizes)
        if counts.dtype == np.int64 and counts.shape == (len(sizes), 3) and np.abs(counts).max() < _SMALL:
            return list(counts.prod(axis=1).tolist())
    except (ValueError, OverflowError):  # not all of them have three numbers
        pass
    return [_product(size) for size in sizes]


def _product(size: Any) -> int | None:
    try:
        x, y, z = size
        return int(x) * int(y) * int(z)
    except (TypeError, ValueError):
        return None


def _column(name: str) -> Callable[[list[Args]], list[Any]]:
    value = attrgetter(name)
    return lambda args: list(map(value, args))


_VALUES: dict[str, Callable[[list[Args]], list[Any]]] = {name: _column(name) for name in Args.__struct_fields__} | {
    "blocks": lambda args: _products([each.grid for each in args]),
    "threads": lambda args: _products([each.block for each in args]),
    # A copy from one device to another has the device that makes it under another name.
    "device": lambda args: [each.copies_on if each.device is None else each.device for each in args],
}
"""How each column is taken from args."""
