"""What the files of a run under way hold: heartbeats of its ranks, live files and events of its nodes.

    seen = read(Path("results/demo/points/<id>/timed.1"), now=time.time())

Each file may be missing, old, or cut in half: what cannot be read is left out. Used by analysis/tools/watch/state.py.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct, field, structs

from nightsweep.jobs.record.json_files import convert, parse_json, parse_lines

STALE_S = 10.0
EVENTS = 3
TAIL_BYTES = 65_536
PHASES = ("start", "group", "data", "model", "steps", "step", "evaluation", "trace", "end")
"""What ranks say, in the order in which they come to it."""


class Gpu(Struct, frozen=True, kw_only=True):
    """A GPU as its node's sampler saw it `age_s` ago. low: it has been under the alert's threshold for too long."""

    host: str = ""
    gpu: int | None = None
    uuid: str | None = None
    sm_active_percent: float | None = None
    utilization_percent: float | None = None
    power_w: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    low_s: float | None = None
    low: bool = False
    age_s: float = 0.0
    stale: bool = False


class Live(Struct, frozen=True, kw_only=True):
    """A live file. alert: the sweep's."""

    host: str = ""
    alert: dict[str, float | None] = field(default_factory=dict)
    gpus: list[Any] = field(default_factory=list)


class Event(Struct, frozen=True, kw_only=True):
    t_ns: int
    host: str = ""
    gpu: int | None = None
    uuid: str | None = None
    kind: str = ""
    message: str = ""


class Beat(Struct, frozen=True, kw_only=True):
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


def beat(text: str) -> Beat | None:
    """A heartbeat; None where it is just being written."""
    first, _, rest = text.partition("\n")
    phase, _, step = first.strip().partition(" ")
    found = parse_json(rest, Beat) or Beat()
    return structs.replace(found, phase=phase, step=int(step) if step.isdecimal() else found.step) if phase else None


def gpus(text: str, age: float) -> Iterator[Gpu]:
    """The GPUs of a live file that was written `age` seconds ago."""
    live = parse_json(text, Live) or Live()
    limit, stale = live.alert.get("for_s"), age > STALE_S
    for entry in live.gpus:
        if isinstance(entry, dict):
            gpu = convert(entry, Gpu)
            low = not stale and limit is not None and gpu.low_s is not None and gpu.low_s >= max(limit, 1e-9)
            yield structs.replace(gpu, host=live.host, low=low, age_s=round(age, 1), stale=stale)


def read(folder: Path, now: float) -> Seen:
    """A folder of a run. Raises OSError where there is none any more."""
    names = sorted(path.name for path in folder.iterdir())

    def files(prefix: str, suffix: str) -> list[tuple[str, float]]:
        files = [name for name in names if name.startswith(prefix) and name.endswith(suffix)]
        return [found for name in files if (found := content(folder / name, TAIL_BYTES))]

    hearts = files("rank", ".heartbeat")
    beats = [found for text, _ in hearts if (found := beat(text))]
    times = [each.step_ms for each in beats if each.step_ms is not None]
    happened = [event for text, _ in files("events-", ".jsonl") for event in parse_lines(text, Event)]
    return Seen(
        slowest=min(beats, key=lambda each: each.place, default=Beat()),
        step_ms=statistics.median(times) if times else None,
        sign_s=max(at for _, at in hearts) if hearts else folder.stat().st_mtime,
        gpus=tuple(gpu for text, at in files("live-", ".json") for gpu in gpus(text, max(0.0, now - at))),
        events=tuple(sorted(happened, key=lambda event: event.t_ns, reverse=True)[:EVENTS]),
    )
