"""What the files of a run under way hold: heartbeats of its ranks, live files and events of its nodes.

    seen = read(Path("results/demo/points/<id>/timed.1"), now=time.time())

Each file may be missing, old, or cut in half: what cannot be read is left out. Used by analysis/tools/watch/state.py.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightsweep.jobs.record.json_files import parse_json, parse_lines

STALE_S = 10.0
EVENTS = 3
TAIL_BYTES = 65_536
PHASES = ("start", "group", "data", "model", "steps", "step", "evaluation", "trace", "end")
"""What ranks say, in the order in which they come to it."""


@dataclass(frozen=True)
class Gpu:
    """A GPU as its node's sampler saw it `age_s` ago. low: it has been under the alert's threshold for too long."""

    host: str
    gpu: int | None
    uuid: str | None
    sm_active_percent: float | None
    utilization_percent: float | None
    power_w: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    low_s: float | None
    low: bool
    age_s: float
    stale: bool


@dataclass(frozen=True)
class Event:
    t_ns: int
    host: str
    gpu: int | None
    uuid: str | None
    kind: str
    message: str


@dataclass(frozen=True)
class Beat:
    """What a rank said last."""

    phase: str | None = None
    step: int | None = None
    steps: int | None = None
    step_ms: float | None = None

    @property
    def place(self) -> tuple[int, int]:
        """How far the rank is."""
        return PHASES.index(self.phase) if self.phase in PHASES else 0, -1 if self.step is None else self.step


@dataclass(frozen=True)
class Seen:
    """A run under way. slowest: of the ranks; sign_s: when one of them gave the last sign of life."""

    slowest: Beat
    step_ms: float | None
    sign_s: float
    gpus: tuple[Gpu, ...]
    events: tuple[Event, ...]


def content(path: Path, tail: int | None = None) -> tuple[str, float] | None:
    """A file's text, or its last bytes, and its time of change; None where it cannot be read."""
    try:
        # opened before it is asked: a network file system tells the true time of change only of an opened file
        with path.open("rb") as source:
            about = os.fstat(source.fileno())
            if tail is not None and about.st_size > tail:
                source.seek(-tail, os.SEEK_END)
            return source.read().decode(errors="replace"), about.st_mtime
    except OSError:
        return None


def parse(text: str) -> dict[str, Any]:
    """A JSON object; empty where the text is half written or something else."""
    return parse_json(text, dict) or {}


def number(value: Any) -> float | None:
    """A finite number, or None."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if good else None


def whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def beat(text: str) -> Beat | None:
    """A heartbeat; None where it is just being written."""
    first, _, rest = text.partition("\n")
    phase, _, step = first.strip().partition(" ")
    entry = parse(rest)
    said = int(step) if step.isdecimal() else whole(entry.get("step"))
    return Beat(phase, said, whole(entry.get("steps")), number(entry.get("step_ms"))) if phase else None


def _who(entry: dict[str, Any]) -> tuple[int | None, str | None]:
    uuid = entry.get("uuid")
    return whole(entry.get("gpu")), None if uuid is None else str(uuid)


def _gpu(host: str, entry: dict[str, Any], limit: float | None, age: float) -> Gpu:
    low_s, stale = number(entry.get("low_s")), age > STALE_S
    index, uuid = _who(entry)
    return Gpu(
        host=host,
        gpu=index,
        uuid=uuid,
        sm_active_percent=number(entry.get("sm_active_percent")),
        utilization_percent=number(entry.get("utilization_percent")),
        power_w=number(entry.get("power_w")),
        memory_used_bytes=whole(entry.get("memory_used_bytes")),
        memory_total_bytes=whole(entry.get("memory_total_bytes")),
        low_s=low_s,
        low=not stale and limit is not None and low_s is not None and low_s >= max(limit, 1e-9),
        age_s=round(age, 1),
        stale=stale,
    )


def gpus(text: str, age: float) -> Iterator[Gpu]:
    """The GPUs of a live file that was written `age` seconds ago."""
    live = parse(text)
    alert, entries = live.get("alert"), live.get("gpus")
    limit = number(alert.get("for_s")) if isinstance(alert, dict) else None
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            yield _gpu(str(live.get("host", "")), entry, limit, age)


def events(text: str) -> Iterator[Event]:
    """The events of a file's end; half a line is none."""
    for entry in parse_lines(text, dict):
        at = whole(entry.get("t_ns"))
        if at is not None:
            kind, message = str(entry.get("kind", "")), str(entry.get("message", ""))
            yield Event(at, str(entry.get("host", "")), *_who(entry), kind, message)


def read(folder: Path, now: float) -> Seen:
    """A folder of a run. Raises OSError where there is none any more."""
    names = sorted(path.name for path in folder.iterdir())

    def files(prefix: str, suffix: str) -> list[tuple[str, float]]:
        files = [name for name in names if name.startswith(prefix) and name.endswith(suffix)]
        return [found for name in files if (found := content(folder / name, TAIL_BYTES))]

    hearts = files("rank", ".heartbeat")
    beats = [found for text, _ in hearts if (found := beat(text))]
    times = [each.step_ms for each in beats if each.step_ms is not None]
    happened = [event for text, _ in files("events-", ".jsonl") for event in events(text)]
    return Seen(
        slowest=min(beats, key=lambda each: each.place, default=Beat()),
        step_ms=statistics.median(times) if times else None,
        sign_s=max(at for _, at in hearts) if hearts else folder.stat().st_mtime,
        gpus=tuple(gpu for text, at in files("live-", ".json") for gpu in gpus(text, max(0.0, now - at))),
        events=tuple(sorted(happened, key=lambda event: event.t_ns, reverse=True)[:EVENTS]),
    )
