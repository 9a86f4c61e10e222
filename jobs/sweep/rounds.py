"""Rounds: points that are added to a sweep while it runs. Each round is a file of the sweep's results:

    repeats/round1.json    {"name", "alert", "round": 1,
                            "points": [{"point_id", "settings"}], further starts of points of the sweep,
                            "looks": [{"what", "starts", "half_width", "enough"}]}
    remedies/round1.json   {"name", "alert", "round": 1,
                            "points": [{"point_id", "settings"}], those that no earlier round and not the sweep has,
                            "trials": [{"point_id", "remedied_id", "cause", "kind", "remedy", "share", "share_low",
                                        "share_high"}]}

`analysis/tools/repeats.py` writes the former, until all is known as well as the sweep's design asks for, and
`analysis/diagnosis/remedies/round.py` the latter.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from msgspec import Struct, structs

from jobs.record.json_files import load_json, read_json
from jobs.record.launch_files import Job
from jobs.sweep.alert import Alert

Kind = Literal["repeats", "remedies"]


class PointList(Struct, frozen=True, kw_only=True):
    """sweep.json, or the file of a round: points to measure."""

    name: str
    alert: Alert | None = None
    points: list[Job]

    def job(self, point_id: str) -> Job:
        """A point of it. Raises LookupError."""
        for job in self.points:
            if job.point_id == point_id:
                return structs.replace(job, sweep=self.name)
        raise LookupError(f"no point {point_id} in it")


def file(results: Path, kind: Kind, number: int) -> Path:
    """That of a round, from 1. `results`: results/SWEEP."""
    return results / kind / f"round{number}.json"


def files(results: Path, *kinds: Kind) -> list[Path]:
    """Those of all rounds that were planned, in order; of these kinds, or of all."""
    found: list[Path] = []
    for kind in kinds or ("repeats", "remedies"):
        number = 1
        while (path := file(results, kind, number)).exists():
            found.append(path)
            number += 1
    return found


def holder(results: Path, point_id: str) -> Path:
    """The file that lists this point: sweep.json, or a round. Raises LookupError where none does."""
    for path in (results / "sweep.json", *files(results)):
        if point_id in ids(path):
            return path
    raise LookupError(f"{results}: no point {point_id} in sweep.json, nor in a round")


def ids(path: Path) -> list[str]:
    """Ids of the points that a file lists."""
    found = read_json(path, PointList)
    return [job.point_id for job in found.points] if found else []


def job_of(results: Path, point_id: str) -> Job:
    """A point of a sweep or of its rounds. Raises LookupError."""
    return load_json(holder(results, point_id), PointList).job(point_id)


def all_ids(results: Path, own: Iterable[str]) -> list[str]:
    """Ids of the points of a sweep: its own, then those of all rounds, each once. What the driver, `nightsweep watch`,
    `nightsweep retry` and the report count."""
    return list(dict.fromkeys([*own, *added_ids(results)]))


def added_ids(results: Path, *kinds: Kind, upto: int | None = None) -> list[str]:
    """Ids of the points of rounds of these kinds, or of all; of each kind the first ones alone."""
    found = [files(results, kind)[:upto] for kind in kinds or ("repeats", "remedies")]
    return [point_id for paths in found for path in paths for point_id in ids(path)]
