"""Rounds of remedies: points that a sweep's diagnoses add to it. Each round is a file of the sweep's results, which
`analysis/diagnosis/remedies/round.py` writes:

    remedies/round1.json   {"name", "alert", "round": 1,
                            "points": [{"point_id", "settings"}], those that no earlier round and not the sweep has,
                            "trials": [{"point_id", "remedied_id", "cause", "kind", "remedy", "share", "share_low",
                                        "share_high"}]}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jobs.record.folder import read_json


def file(results: Path, number: int) -> Path:
    """That of a round, from 1. `results`: results/SWEEP."""
    return results / f"remedies/round{number}.json"


def files(results: Path) -> list[Path]:
    """Those of all rounds that were planned, in order."""
    found: list[Path] = []
    while (path := file(results, len(found) + 1)).exists():
        found.append(path)
    return found


def holder(results: Path, point_id: str) -> Path:
    """The file that lists this point: sweep.json, or a round. Raises LookupError where none does."""
    for path in (results / "sweep.json", *files(results)):
        if any(point["point_id"] == point_id for point in (read_json(path) or {}).get("points", [])):
            return path
    raise LookupError(f"{results}: no point {point_id} in sweep.json, nor in a round of remedies")


def job_of(results: Path, point_id: str) -> dict[str, Any]:
    """{"sweep", "point_id", "settings"} of a point. Raises LookupError."""
    told = read_json(holder(results, point_id)) or {}
    mine = next(point for point in told["points"] if point["point_id"] == point_id)
    return {"sweep": told["name"], **mine}


def added(results: Path, upto: int | None = None) -> list[str]:
    """Ids of the points of all rounds, or of the first ones."""
    told = (read_json(path) or {} for path in files(results)[:upto])
    return [point["point_id"] for one in told for point in one["points"]]
