"""docs/techniques.md: each technique, its switch, and what it did, from the tables of the sweep that measured them:

python -m analysis.tools.techniques results/techniques/tables
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from jobs.host.facts import ROOT
from jobs.point.point import Point
from jobs.sweep.pairs import Pair
from jobs.sweep.sweep import load

SWEEP = ROOT / "config/techniques.yaml"
MOST_REPEATS = 10
_MEASURES = {"time": "samples_per_s", "memory": "peak_memory_bytes", "energy": "sample_j"}
_HEAD = """# Techniques

Written by `python -m analysis.tools.techniques results/techniques/tables` from what the sweep `config/techniques.yaml`
measured; do not edit.

Each row is a pair of points that differ in the switch alone; the numbers are the point with it over the one without:
time and energy of a sample, peak memory of a rank (medians over runs; below 1 is less). `runs`: without and with it;
one tells nothing of the spread. A dash: not measured.
Measured on: {where}.

| technique | against | switch | shown by | runs | time | memory | energy | |
|---|---|---|---|---|---|---|---|---|
"""


def page(points: pl.DataFrame, pairs: Sequence[Pair]) -> str:
    """The page. `points`: the table of that name, of the sweep; one without rows gives a page without numbers."""
    where = (
        ", ".join(points.filter(pl.col("status") == "ok")["accelerator"].drop_nulls().unique().sort()) or "nothing yet"
    )
    return _HEAD.format(where=where) + "".join(row(pair, points) + "\n" for pair in pairs)


def row(pair: Pair, points: pl.DataFrame) -> str:
    """One technique's line."""
    switch = ", ".join(f"`{name}: {_format(value)}`" for name, value in pair.having.items())
    if not pair.having:
        switch = ", ".join(f"not `{name}: {_format(value)}`" for name, value in pair.without.items())
    against = ", ".join(pair.against)
    if pair.not_shown is not None:
        return f"| {pair.name} | {against} | {switch} |  |  | - | - | - | not shown: {pair.not_shown} |"
    without, with_it = (measured_effects(point, points) for point in pair.points())
    effects = [ratio(with_it.get(name), without.get(name), inverse=name == "time") for name in _MEASURES]
    failed = "; ".join(text for text in (without.get("failed"), with_it.get("failed")) if text)
    cells = [shown_by(pair), f"{without['runs']}, {with_it['runs']}", *effects, failed]
    return f"| {pair.name} | {against} | {switch} | {' | '.join(cells)} |"


def shown_by(pair: Pair) -> str:
    """The point with it, in brief, and its id."""
    point = pair.points()[1]
    ranks = f", {point.world_size} GPUs" if point.world_size > 1 else ""
    return f"{point.model}, batch {point.micro_batch}{ranks} (`{point.id}`)"


def measured_effects(point: Point, points: pl.DataFrame) -> dict[str, Any]:
    """Medians over the point's good `runs`, by name of _MEASURES; `failed`: why there are none."""
    ids = [dataclasses.replace(point, repeat=number).id for number in range(MOST_REPEATS)]
    own = points.filter(pl.col("point_id").is_in(ids), pl.col("status") != "not_run")
    good = own.filter(pl.col("status") == "ok")
    if good.is_empty():
        reasons = own["reason"].drop_nulls().unique().sort().to_list()
        return {"runs": 0} | ({"failed": f"{point.id}: {', '.join(reasons)}"} if reasons else {})
    return {"runs": good.height} | {name: good[column].median() for name, column in _MEASURES.items()}


def ratio(after: float | None, before: float | None, *, inverse: bool) -> str:
    if not after or not before:
        return "-"
    return f"{before / after if inverse else after / before:.2f}"


def _format(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def main(argv: Sequence[str] | None = None) -> int:
    folder = Path((argv or sys.argv[1:])[0])
    pairs = load(SWEEP).pairs
    (ROOT / "docs/techniques.md").write_text(page(pl.read_parquet(folder / "points.parquet"), pairs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
