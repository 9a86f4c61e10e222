"""A point of many ranks out of a real trace of two: the one that has more to compute, and copies of the other.

The run is straggler_compute of tests/data/labelled, on two H200s. Copies are synthetic: say so where they are quoted.
"""

from __future__ import annotations

import functools
import gzip
import json
import lzma
import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Any

from nightsweep.jobs.record.json_files import write_json

RUN = Path(__file__).parents[1] / "data/labelled/straggler_compute"
NODE = 8
"""Ranks of a node, where there are more."""
CLOCK_NS = 7_000_003
"""By how much the clock in each rank's trace is ahead of that of the rank before."""


def make_point(point: Path, ranks: int, slow: int | None, traced: Collection[int] | None = None) -> None:
    """Write a point's raw data, as a launch leaves it.

    Args:
        point: its folder, which must not be there.
        ranks: how many there are: up to 8, or a multiple of 8.
        slow: the rank that computes for longer than all others, which wait for it; None: no rank does.
        traced: ranks that have a trace, without which all have.
    """
    known = record()
    nodes = max(1, ranks // NODE)
    settings = {**known["settings"], "nodes": nodes, "ranks_per_node": ranks // nodes}
    hosts = [{**known["hosts"][0], "hostname": f"node{node}"} for node in range(nodes)]
    made = {"point_id": point.name, "settings": settings, "world_size": ranks, "hosts": hosts}
    folder = point / "traced"
    folder.mkdir(parents=True)
    write_json(point / "record.json", {**known, **made})
    results, steps, traces = ([read(rank) for rank in (0, 1)] for read in (_result, _steps, _trace))
    for rank in range(ranks):
        source = int(rank == slow)
        host = f"node{rank * nodes // ranks}"
        write_json(folder / f"rank{rank}.result.json", {**results[source], "rank": rank, "host": host})
        (folder / f"steps-r{rank}.jsonl").write_bytes(steps[source])
        if traced is None or rank in traced:
            trace = folder / f"trace-r{rank}.sqlite"
            trace.write_bytes(traces[source])
            set_clock_ahead(trace, rank * CLOCK_NS)


def record() -> dict[str, Any]:
    """The run's own."""
    return dict(json.loads((RUN / "record.json").read_text()))


def set_clock_ahead(trace: Path, by_ns: int) -> None:
    """Add to all times of a trace."""
    with closing(sqlite3.connect(trace)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = {row[1] for row in db.execute(f'PRAGMA table_info("{table}")')} & {"start", "end"}
            if columns:
                db.execute(f'UPDATE "{table}" SET ' + ", ".join(f'"{name}" = "{name}" + {by_ns}' for name in columns))
        db.commit()


def _result(rank: int) -> dict[str, object]:
    return dict(json.loads((RUN / f"traced/rank{rank}.result.json").read_text()))


@functools.cache
def _steps(rank: int) -> bytes:
    return gzip.decompress((RUN / f"traced/steps-r{rank}.jsonl.gz").read_bytes())


@functools.cache
def _trace(rank: int) -> bytes:
    return lzma.decompress((RUN / f"traced/trace-r{rank}.sqlite.xz").read_bytes())
