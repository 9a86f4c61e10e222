"""The state of a results folder while its sweep runs, read from the small files of launchers, ranks and samplers.

    reader = Reader(Path("results"))     # all sweeps below it; or results/SWEEP
    state = reader.read()                # again and again; analysis/tools/watch/view.py turns it into text

It may run on a login node: it writes nothing, and each reading opens only files of points that run. A waiting point
costs one stat; a finished one nothing, but that it is looked at once a minute (its record may be set aside).

`nightsweep watch --json` prints a State:

    {"t_ns": when it was read (UTC ns),
     "sweeps": [{"name", "points", "done" (with a record), "failed" (done and not ok), "running", "left" (not done;
                 those that run are among them), "left_s": null | s until the end while points run, by the time
                 that one took since the driver began, "running_points": [
       {"point_id", "settings": {those that vary in the sweep}, "attempt",
        "look": "timed" | "traced" | "cost-..." (of the control),
        "phase": null | "start" | "group" | "data" | "model" | "steps" | "step" | "evaluation" | "trace" | "end" (of
        the slowest rank),
        "step": null | from 0 (of that rank), "steps": null | steps of the run, "step_ms": null | median over ranks,
        "age_s": since any rank gave a sign of life, "silent": whether that is more than 120 s,
        "gpus": [{"host", "gpu", "uuid", "sm_active_percent", "utilization_percent", "power_w", "memory_used_bytes",
                  "memory_total_bytes", "low_s" (null where not known), "low": under the alert's threshold for as long
                  as it allows, "age_s": of these numbers, "stale": whether that is more than 10 s (then never low)}],
        "events": the newest three, newest first: [{"t_ns", "host", "gpu", "uuid", "kind", "message"}]}]}]}
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightsweep.analysis.tools.watch import running as live_look
from nightsweep.analysis.tools.watch.running import Event, Gpu, content
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.record.json_files import FormatError, parse_json
from nightsweep.jobs.record.record import Record
from nightsweep.jobs.sweep import rounds

SILENT_S = 120.0
RECHECK_S = 60.0  # of a finished point
RACY_S = 5.0  # a younger time of change proves nothing: the next change may bear the same one
_LOOK = re.compile(r"(timed|traced|cost-[a-z]+-[0-9]+)\.([0-9]+)")


@dataclass(frozen=True)
class Running:
    """A point whose ranks are under way."""

    point_id: str
    settings: dict[str, Any]
    look: str
    attempt: int
    phase: str | None
    step: int | None
    steps: int | None
    step_ms: float | None
    age_s: float
    silent: bool
    gpus: tuple[Gpu, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True)
class SweepState:
    name: str
    points: int
    done: int
    failed: int
    running: int
    left: int
    left_s: float | None
    running_points: tuple[Running, ...]


@dataclass(frozen=True)
class State:
    t_ns: int
    sweeps: tuple[SweepState, ...]

    @property
    def finished(self) -> bool:
        return not any(sweep.left for sweep in self.sweeps)


@dataclass(frozen=True)
class Still:
    """A point that does not run: its record's status (None: it waits), and its folder's time of change at a reading."""

    status: str | None
    changed_s: float
    read_s: float

    def fresh(self, now: float) -> bool:
        return self.status is not None and now - self.read_s < RECHECK_S

    def proven(self, changed_s: float) -> bool:
        """Whether the folder's time of change says that this is still so."""
        return changed_s == self.changed_s < self.read_s - RACY_S


def varying(points: dict[str, dict[str, Any]]) -> list[str]:
    """Settings that differ between points that have them."""
    values: dict[str, set[str]] = {}
    for settings in points.values():
        for name, value in settings.items():
            values.setdefault(name, set()).add(repr(value))
    return [name for name, found in values.items() if len(found) > 1]


def steps_of(settings: dict[str, Any], look: str) -> int | None:
    """Steps of a run's start, its warm-up included."""
    parts = ["warmup_steps", f"{look}_steps"]
    if look == "timed" and settings.get("tracer") == "auto":
        parts.append("traced_steps")
    counts = [count for name in parts if isinstance(count := settings.get(name), int)]
    return sum(counts) if len(counts) == len(parts) else None


def listed(file: Path, text: str) -> dict[str, dict[str, Any]]:
    """Settings of the points in a list of them, by id. Raises FormatError."""
    try:
        return {str(each["point_id"]): dict(each["settings"]) for each in json.loads(text)["points"]}
    except (LookupError, TypeError, ValueError, RecursionError):
        raise FormatError(f'{file}: is no list of points ({{"name", "points": [...]}})') from None


class SweepReader:
    """One sweep's folder. Keeps what it found of points that do not run, between readings."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "sweep.json"
        self.name, self.changed_s = folder.name, [-1.0]
        self.points: dict[str, dict[str, Any]] = {}
        self.names: list[str] = []
        self.still: dict[str, Still] = {}

    def load(self) -> None:
        """The sweep's points and those that rounds added, where a list of them is new. What was read before
        outlives what cannot be read now."""
        try:
            files = [self.file, *rounds.files(self.folder)]
            if [file.stat().st_mtime for file in files] == self.changed_s:
                return
            texts, changed = zip(*(content(file) or ("", -1.0) for file in files), strict=True)
            points = {k: v for file, text in zip(files, texts, strict=True) for k, v in listed(file, text).items()}
        except (OSError, FormatError) as error:
            if self.points:
                return
            raise InputError(str(error)) from None
        self.name, self.points, self.changed_s = str(json.loads(texts[0]).get("name", self.name)), points, list(changed)
        self.names, self.still = varying(points), {}

    def read(self, now: float) -> SweepState:
        self.load()
        try:
            there = {path.name for path in (self.folder / "points").iterdir()}
        except OSError:
            there = set()
        running, counts = [], Counter[str]()
        for point_id in self.points:
            found = self.point(point_id, now) if point_id in there else None
            if isinstance(found, Running):
                running.append(found)
            elif found is not None:
                counts[found] += 1
        done = counts.total()
        failed, left = done - counts["ok"], len(self.points) - done
        left_s = self.left_s(left, now) if running else None
        return SweepState(self.name, len(self.points), done, failed, len(running), left, left_s, tuple(running))

    def left_s(self, left: int, now: float) -> float | None:
        """Seconds until the last point has ended, as the driver estimates it: by those that ended since it began."""
        try:
            began = (self.folder / ".driver").stat().st_mtime
        except OSError:
            return None
        ended = sum(each.status is not None and each.changed_s > began for each in self.still.values())
        return (now - began) / ended * left if ended and left else None

    def point(self, point_id: str, now: float) -> Running | str | None:
        """A point that runs, or the status of its record, or None where it waits."""
        folder = self.folder / "points" / point_id
        known = self.still.get(point_id)
        try:
            if known is None or not known.fresh(now):
                changed = folder.stat().st_mtime
                found = known.status if known and known.proven(changed) else self.examine(folder, now)
                if isinstance(found, Running):
                    self.still.pop(point_id, None)
                    return found
                known = self.still[point_id] = Still(found, changed, now)
        except OSError:  # renamed or deleted just now
            self.still.pop(point_id, None)
            return None
        return known.status

    def examine(self, folder: Path, now: float) -> Running | str | None:
        """The same, from the files. A record outweighs what a killed launcher left, not ranks that moved since."""
        names = [path.name for path in folder.iterdir()]
        # A start that goes on to traced steps has a folder for these, too; it moves in the timed one.
        one_start = {f"traced.{name.partition('.')[2]}" for name in names if name.startswith("timed.")}
        looks = [(int(m[2]), m[1], m[0]) for name in names if (m := _LOOK.fullmatch(name)) and name not in one_start]
        record = content(folder / "record.json") if "record.json" in names else None
        if looks:
            attempt, look, name = max(looks)
            seen = live_look.read(folder / name, now)
            if record is None or (seen.sign_s > record[1] and now - seen.sign_s <= SILENT_S):
                return self.running(folder.name, look, attempt, seen, max(0.0, now - seen.sign_s))
        if record is None:
            return None
        written = parse_json(record[0], Record)
        return written.status if written else "unreadable"

    def running(self, point_id: str, look: str, attempt: int, seen: live_look.Seen, age: float) -> Running:
        settings, slowest = self.points[point_id], seen.slowest
        return Running(
            point_id=point_id,
            settings={name: settings[name] for name in self.names if name in settings},
            look=look,
            attempt=attempt,
            phase=slowest.phase,
            step=slowest.step,
            steps=slowest.steps if slowest.steps is not None else steps_of(settings, look),
            step_ms=seen.step_ms,
            age_s=round(age, 1),
            silent=age > SILENT_S,
            gpus=seen.gpus,
            events=seen.events,
        )


class Reader:
    """All sweeps of a results folder, or the one of results/SWEEP."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.sweeps: dict[Path, SweepReader] = {}

    def folders(self) -> list[Path]:
        expected = "expected a results folder, or results/SWEEP, of a sweep that was started"
        try:
            if (self.results / "sweep.json").exists():
                return [self.results]
            if not self.results.is_dir():
                raise InputError(f"{self.results}: is no folder; {expected}")
            found = sorted(path.parent for path in self.results.glob("*/sweep.json"))
        except OSError as error:
            raise InputError(f"{self.results}: {error.strerror}; {expected}") from None
        if not found:
            raise InputError(f"{self.results}: no sweep.json here or in a folder of it; {expected}")
        return found

    def read(self) -> State:
        """How things stand. Raises InputError."""
        now = time.time_ns()
        sweeps = [self.sweeps.setdefault(folder, SweepReader(folder)) for folder in self.folders()]
        return State(now, tuple(sweep.read(now / 1e9) for sweep in sweeps))
