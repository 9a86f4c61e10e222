"""A Kineto trace as columns, which compress to a third of what its events do; times stay exact.

Of all operators but those of collectives only how many began between two calls of CUDA is kept: more is not read.
"""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
from bisect import bisect_right
from decimal import Decimal
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import msgspec

from nightsweep.analysis.readers.kineto.event_columns import _KINDS, COMMUNICATION, Args

TOP = ("schemaVersion", "deviceProperties", "baseTimeNanoseconds", "displayTimeUnit")
DISTRIBUTED = ("rank", "world_size", "backend")
ARGS = {field.encode_name for field in msgspec.structs.fields(Args)}
EXTERNAL = "External id"
COUNTED = ("correlation", EXTERNAL)
"""Args that grow from event to event; the others are the same of many events."""
OPERATOR = "op"
CALLS = ("cuda_runtime", "cuda_driver")
_THOUSANDTHS = [f"{number:03d}" for number in range(1000)]


def pack(text: bytes) -> bytes:
    """A trace's JSON, packed."""
    trace = json.loads(text, parse_float=Decimal)
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X" and event.get("cat") in _KINDS]
    edges = sorted(
        {edge for event in events if event["cat"] in CALLS for edge in (event["ts"], event["ts"] + event["dur"])}
    )
    for event in filter(_is_plain, events):
        before = bisect_right(edges, event["ts"])
        event |= {"ts": edges[before - 1] if before else event["ts"], "dur": 0}
    events.sort(key=lambda event: event["ts"])
    plain = list(map(_is_plain, events))
    args = [
        {} if operator else {k: v for k, v in event.get("args", {}).items() if k in ARGS}
        for event, operator in zip(events, plain, strict=True)
    ]
    joined = {own.get(EXTERNAL) for event, own in zip(events, args, strict=True) if event["name"] == COMMUNICATION}
    for own in args:  # only a collective's operator is looked for by this number
        if own.get(EXTERNAL) not in joined:
            own.pop(EXTERNAL, None)
    columns: dict[str, Any] = {
        "ts": _deltas([int(event["ts"] * 1000) for event in events]),
        "dur": [int(event.get("dur", 0) * 1000) for event in events],
        "what": _codes([[e["cat"], OPERATOR if o else e["name"]] for e, o in zip(events, plain, strict=True)]),
        "where": _codes([[event["pid"], event["tid"]] for event in events]),
        "args": _codes([{k: v for k, v in own.items() if k not in COUNTED} for own in args]),
        **{name: _deltas([own.get(name, -1) for own in args]) for name in COUNTED},
    }
    top = {key: trace[key] for key in TOP if key in trace}
    info = {key: value for key, value in trace.get("distributedInfo", {}).items() if key in DISTRIBUTED}
    content = json.dumps(top | {"distributedInfo": info, "columns": columns}, separators=(",", ":"), default=float)
    return lzma.compress(content.encode(), preset=9)


def unpack(packed: bytes) -> bytes:
    """The trace's JSON again."""
    content = msgspec.json.decode(lzma.decompress(packed))
    columns = content.pop("columns")
    known = {name: columns[name]["known"] for name in ("what", "where", "args")}
    whats = [f'{{"ph": "X", "cat": {json.dumps(cat)}, "name": {json.dumps(name)}, ' for cat, name in known["what"]]
    wheres = [f'"pid": {json.dumps(pid)}, "tid": {json.dumps(tid)}, "args": {{' for pid, tid in known["where"]]
    texts = [json.dumps(args)[1:-1] for args in known["args"]]
    ids = {True: [f"{text}, " if text else "" for text in texts], False: texts}
    first, second = (f'"{name}": ' for name in COUNTED)
    places = zip(*(columns[name]["code"] for name in known), strict=True)
    numbers = zip(*(accumulate(columns[name]) for name in COUNTED), strict=True)
    times = zip(accumulate(columns["ts"]), columns["dur"], strict=True)
    lines = []
    for (what, where, args), (one, two), (ts, dur) in zip(places, numbers, times, strict=True):
        inner = ids[one >= 0 or two >= 0][args]
        if one >= 0:
            inner += f"{first}{one}, {second}{two}" if two >= 0 else f"{first}{one}"
        elif two >= 0:
            inner += f"{second}{two}"
        at, took = f"{ts // 1000}.{_THOUSANDTHS[ts % 1000]}", f"{dur // 1000}.{_THOUSANDTHS[dur % 1000]}"
        lines.append(f'{whats[what]}{wheres[where]}{inner}}}, "ts": {at}, "dur": {took}}}')
    events = ",\n".join(lines)
    return f'{json.dumps(content)[:-1]}, "traceEvents": [\n{events}\n]}}'.encode()


def unpacked(kept: Path, folder: Path) -> Path:
    """A copy of a kept run's folder in this one, as pairs.py leaves it, but with traces that are not compressed."""
    target = folder / kept.name
    shutil.copytree(kept, target)
    for path in target.rglob("*.xz"):  # traces
        path.with_suffix(".json").write_bytes(unpack(path.read_bytes()))
        path.unlink()
    for path in target.rglob("steps-*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    return target


def _is_plain(event: dict[str, Any]) -> bool:
    """Whether it is an operator, and not of a collective."""
    return bool(event["cat"] == "cpu_op" and event["name"] != COMMUNICATION)


def _deltas(values: list[int]) -> list[int]:
    return [*values[:1], *(after - before for before, after in pairwise(values))]


def _codes(values: list[Any]) -> dict[str, Any]:
    """The different values, and of each place which of them it is."""
    places: dict[str, int] = {}
    codes = [places.setdefault(json.dumps(value, default=float), len(places)) for value in values]
    return {"known": [json.loads(text) for text in places], "code": codes}
