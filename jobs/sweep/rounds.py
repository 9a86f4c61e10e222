"""Rounds: points that are added to a sweep while it runs. Each round is a file of the sweep's results:

    repeats/P/round1.json  {"name", "alert", "round": 1,
                            "points": [{"point_id", "settings"}], further starts of points of the sweep,
                            "looks": [{"what", "starts", "half_width", "enough"}]}
    remedies/round1.json   {"name", "alert", "round": 1,
                            "points": [{"point_id", "settings"}], those that no earlier round and not the sweep has,
                            "trials": [{"point_id", "remedied_id", "cause", "kind", "remedy", "share", "share_low",
                                        "share_high"}]}

`analysis/tools/repeats.py` writes the former, until all is known as well as the sweep's precision P asks for (another
precision has rounds of its own name), and `analysis/diagnosis/remedies/round.py` the latter.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct, field, structs

from nightsweep.jobs.record.json_files import load_json, write_json
from nightsweep.jobs.record.launch_files import Job
from nightsweep.jobs.sweep.alert import Alert
from nightsweep.jobs.sweep.design import Precision

REMEDIES = "remedies"


class PointList(Struct, frozen=True, kw_only=True):
    """sweep.json, or the file of a round: points to measure. `files`: of scripts, a hash of each as the sweep was read;
    like `precision`, of sweep.json alone."""

    name: str
    alert: Alert = field(default_factory=Alert)
    points: list[Job]
    precision: Precision | None = None
    files: dict[str, str] = field(default_factory=dict)

    def job(self, point_id: str) -> Job:
        """A point of it. Raises LookupError."""
        for job in self.points:
            if job.point_id == point_id:
                return structs.replace(job, sweep=self.name)
        raise LookupError(f"no point {point_id} in it")


def file(results: Path, kind: str, number: int) -> Path:
    """That of a round, from 1. `results`: results/SWEEP; `kind`: folder of such rounds."""
    return results / kind / f"round{number}.json"


def kinds(results: Path) -> list[str]:
    """The folders of rounds that count, as sweep.json says, if there is one. Raises FormatError."""
    path = results / "sweep.json"
    sweep = load(path) if path.exists() else None
    return [*([sweep.precision.folder] if sweep and sweep.precision else []), REMEDIES]


def files(results: Path, *chosen: str) -> list[Path]:
    """Those of all rounds that were planned, in order; of these kinds, or of all that count."""
    found: list[Path] = []
    for kind in chosen or kinds(results):
        number = 1
        while (path := file(results, kind, number)).exists():
            found.append(path)
            number += 1
    return found


def holder(lists: Iterable[Path], point_id: str) -> Path:
    """Which of these files lists this point. Raises LookupError where none does, and FormatError."""
    for path in lists:
        if point_id in ids(path):
            return path
    raise LookupError(f"no point {point_id} in sweep.json, nor in a round")


def load(path: Path) -> PointList:
    """What a file lists, parsed once: each job of a round asks for it several times, and a thousand points take 40 ms.
    Another file in its place is parsed anew. Raises FormatError."""
    try:
        state = path.stat()
    except OSError:
        return load_json(path, PointList)  # which says what is wrong
    return _load(path, state.st_ino, state.st_mtime_ns)


@functools.lru_cache(maxsize=32)
def _load(path: Path, *_version: int) -> PointList:
    return load_json(path, PointList)


def ids(path: Path) -> list[str]:
    """Ids of the points that a file lists. Raises FormatError: a round without its points would be one that is over."""
    return [job.point_id for job in load(path).points]


def job_of(results: Path, point_id: str) -> Job:
    """A point of a sweep or of its rounds. Raises LookupError, and FormatError."""
    lists = (results / "sweep.json", *files(results))
    return load(holder(lists, point_id)).job(point_id)


def all_ids(results: Path, own: Iterable[str]) -> list[str]:
    """Ids of the points of a sweep: its own, then those of all rounds, each once. What the driver, `nightsweep watch`,
    `nightsweep retry` and the report count."""
    return list(dict.fromkeys([*own, *added_ids(results)]))


def added_ids(results: Path, *chosen: str, upto: int | None = None) -> list[str]:
    """Ids of the points of rounds of these kinds, or of all that count; of each kind the first ones alone."""
    found = [files(results, kind)[:upto] for kind in chosen or kinds(results)]
    return [point_id for paths in found for path in paths for point_id in ids(path)]


def write(results: Path, kind: str, number: int, content: dict[str, Any]) -> None:
    """Write the file of a round: `content`, with its number."""
    path = file(results, kind, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"round": number, **content})
