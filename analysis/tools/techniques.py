"""docs/techniques.md: each technique, its switch, and what it did, from the tables of the sweep that measured them:

python -m nightsweep.analysis.tools.techniques data/h200-2026-11-21/tables
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from nightsweep.analysis.sweep import dataset, nights
from nightsweep.analysis.sweep.starts import Starts
from nightsweep.analysis.tables import parquet
from nightsweep.jobs.host.facts import ROOT
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.point.template import as_text
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.sweep.pairs import Pair
from nightsweep.jobs.sweep.sweep import load

SWEEP = ROOT / "config/techniques.yaml"
MOST_REPEATS = 10
_MEASURES = ("samples_per_s", "peak_memory_bytes", "sample_j")
_HEAD = """# Techniques

Written by `python -m nightsweep.analysis.tools.techniques TABLES` from what the sweep `config/techniques.yaml`
measured; do not edit.

Each row is a pair of points that differ in the switch alone; the numbers are the point with it over the one without:
time and energy of a sample, peak memory of a rank (medians over runs; below 1 is less). In brackets: the 95 % interval
of times, by what starts of such runs differ ([protocol.md](protocol.md)); a time whose interval has both sides of 1 is
in italics: it may be noise. `runs`: without and with it. A dash: not measured. *Of two nights*: no night has both
sides, and nights may differ too.
Of {known} effects on time {beyond} are beyond that noise. Measured on: {where}.

| technique | against | switch | shown by | runs | time | memory | energy | |
|---|---|---|---|---|---|---|---|---|
"""


def page(points: pl.DataFrame, pairs: Sequence[Pair], starts: Starts | None = None) -> str:
    """The page. `points`: the table of that name, of the sweep; one without rows gives a page without numbers.
    `starts`: its points as starts; without them times have no intervals."""
    kinds = points.filter(pl.col("status") == "ok")["accelerator"].drop_nulls().unique().sort()
    where = ", ".join(kinds) or "nothing yet"
    points = nights.add_nights(points, points)
    found = [time_effect(pair, points, starts) for pair in pairs]
    known = [effect for effect in found if effect is not None and effect.interval is not None]
    head = _HEAD.format(where=where, known=len(known), beyond=sum(effect.is_beyond_noise for effect in known))
    return head + "".join(row(pair, points, effect) + "\n" for pair, effect in zip(pairs, found, strict=True))


@dataclass(frozen=True)
class Effect:
    """Time with a technique over that without, and where it lies by what starts differ."""

    ratio: float
    interval: tuple[float, float] | None = None

    @property
    def is_beyond_noise(self) -> bool:
        return self.interval is not None and not self.interval[0] <= 1 <= self.interval[1]

    def text(self) -> str:
        if self.interval is None:
            return f"{self.ratio:.2f}"
        mark = "" if self.is_beyond_noise else "*"
        return f"{mark}{self.ratio:.2f} ({self.interval[0]:.2f} to {self.interval[1]:.2f}){mark}"


def time_effect(pair: Pair, points: pl.DataFrame, starts: Starts | None) -> Effect | None:
    """What a technique did to the time of a sample; None where that was not measured."""
    if pair.not_shown is not None:
        return None
    without, with_it = (measured_effects(point, points) for point in pair.points())
    if not without.get("samples_per_s") or not with_it.get("samples_per_s"):
        return None
    ratio = without["samples_per_s"] / with_it["samples_per_s"]
    if starts is None:
        return Effect(ratio)
    noise = starts.noise(without["ids"][0], with_it["ids"][0])
    off = math.exp(noise.half((without["runs"], with_it["runs"])))
    return Effect(ratio, (ratio / off, ratio * off))


def row(pair: Pair, points: pl.DataFrame, time: Effect | None) -> str:
    """One technique's line."""
    switch = ", ".join(f"`{name}: {as_text(value)}`" for name, value in pair.having.items())
    if not pair.having:
        switch = ", ".join(f"not `{name}: {as_text(value)}`" for name, value in pair.without.items())
    against = ", ".join(pair.against)
    if pair.not_shown is not None:
        return f"| {pair.name} | {against} | {switch} |  |  | - | - | - | not shown: {pair.not_shown} |"
    without, with_it = (measured_effects(point, points) for point in pair.points())
    effects = [time.text() if time else "-", *(ratio(with_it.get(name), without.get(name)) for name in _MEASURES[1:])]
    failed = "; ".join(text for text in (without.get("failed"), with_it.get("failed")) if text)
    if {"nights"} <= without.keys() & with_it.keys() and not without["nights"] & with_it["nights"]:
        failed = "*of two nights*"
    cells = [shown_by(pair), f"{without['runs']}, {with_it['runs']}", *effects, failed]
    return f"| {pair.name} | {against} | {switch} | {' | '.join(cells)} |"


def shown_by(pair: Pair) -> str:
    """The point with it, in brief, and its id."""
    point = pair.points()[1]
    ranks = f", {point.world_size} GPUs" if point.world_size > 1 else ""
    return f"{point.model}, batch {point.micro_batch}{ranks} (`{point.id}`)"


def measured_effects(point: Point, points: pl.DataFrame) -> dict[str, Any]:
    """Medians of _MEASURES over the point's good `runs`, those that nothing disturbed, their `ids` and `nights`;
    `failed`: why there are none."""
    ids = [dataclasses.replace(point, repeat=number).id for number in range(MOST_REPEATS)]
    own = points.filter(pl.col("point_id").is_in(ids), pl.col("status") != "not_run")
    good = dataset.undisturbed(own.filter(pl.col("status") == "ok"))
    if good.is_empty():
        reasons = own["reason"].drop_nulls().unique().sort().to_list()
        return {"runs": 0} | ({"failed": f"{point.id}: {', '.join(reasons)}"} if reasons else {})
    known = {"runs": good.height, "ids": good["point_id"].to_list(), "nights": set(good["night"].to_list())}
    return known | {n: good[n].median() for n in _MEASURES}


def ratio(after: float | None, before: float | None) -> str:
    return f"{after / before:.2f}" if after and before else "-"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nightsweep.analysis.tools.techniques", description="Write docs/techniques.md."
    )
    parser.add_argument("tables", type=Path, help="folder of the tables (Parquet) of a sweep or data set")
    folder = parser.parse_args(argv).tables
    try:
        parquet.require(folder / "points.parquet", "expected a sweep's tables")
        tables = dataset.load(folder)
    except InputError as error:
        parser.error(str(error))
    pairs = load(SWEEP).pairs
    points, steps = tables["points"], tables.scan("steps")
    (ROOT / "docs/techniques.md").write_text(page(points, pairs, Starts.of(points, steps)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
