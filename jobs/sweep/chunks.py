"""Chunks: points whose tables and diagnoses one job makes, into one file a table (analysis/ingest/derived.py). A job a
point would spend its time on starting Python, and Snakemake its own on choosing among jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from nightsweep.jobs.record.json_files import read_json

SIZE = 200
"""Points of a chunk. A job needs some two seconds to start, and a point 20 ms without a trace, half a second with a
small one; larger chunks would begin later, for all of their points must have ended."""

RESOURCES = {"gpus_per_node": 0, "cpus_per_task": 8, "mem_mb": 8000, "runtime": 120, "exclusive": 0}
"""Of its job, where the profile says nothing else of the rule `derive`."""


def divide(lists: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """The points of each chunk, by its name. A point is in the first list that has it, so that a round that is added
    changes no chunk of the lists before. `lists`: ids by name, in the order in which they run."""
    found: dict[str, tuple[str, ...]] = {}
    seen: set[str] = set()
    for name, ids in lists.items():
        own = [point for point in dict.fromkeys(ids) if point not in seen]
        seen.update(own)
        for number, begin in enumerate(range(0, len(own), SIZE)):
            found[f"{name}-{number:04d}"] = tuple(own[begin : begin + SIZE])
    return found


def problems(derived: Path, names: Iterable[str]) -> dict[str, str]:
    """Why there are no tables, or no diagnosis, of a point, by its id. `derived`: folder of the chunks, `names`: of
    those that count."""
    found: dict[str, str] = {}
    for name in names:
        found |= (read_json(derived / f"{name}.json", dict) or {}).get("problems", {})
    return found
