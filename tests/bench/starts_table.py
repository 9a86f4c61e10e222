"""How far starts differ in published data sets: what `TABLE` of analysis/sweep/starts.py is made from.

    python -m tests.bench.starts_table data/h200-2026-11-21 data/h200-2026-11-27 data/h200-2026-11-28

Of starts that nothing disturbed, by where both of a pair ran and what decides: the spread pooled over settings, or so
much more that in no set of LEAST_PAIRS pairs more than one in twenty would be called different.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from unittest import mock

import polars as pl

from nightsweep.analysis.sweep import dataset, starts
from nightsweep.analysis.sweep.starts import Noise, Starts, noise_of_repeats, what_decides

LEAST_PAIRS = 10
"""Fewer are of too few settings to tell."""
CELLS = [(one_host, kind) for one_host in (True, False) for kind in ("device", "mixed", "host", None)]
Cell = tuple[bool, str | None]
Groups = dict[Cell, list[list[float]]]


def starts_of(folder: Path) -> pl.DataFrame:
    """The starts of a data set that nothing disturbed, as the report takes them."""
    tables = dataset.load(folder / "tables")
    return dataset.undisturbed(Starts.of(tables["points"], tables.scan("steps")).frame)


def by_cell(frame: pl.DataFrame) -> Groups:
    """Mean steps of starts of the same settings, by each cell that they count in."""
    found: Groups = {cell: [] for cell in CELLS}
    for one_host in (True, False):
        for group in frame.partition_by(["settings", "host"] if one_host else ["settings"]):
            if group.height > 1 and (one_host or group["host"].n_unique() > 1):
                active = None if group["sm_active"].null_count() else float(group["sm_active"].mean())  # type: ignore[arg-type]
                for kind in {what_decides(active), None}:
                    found[one_host, kind].append(group["ms"].to_list())
    return found


def called(of: Sequence[Sequence[float]], half: float) -> tuple[int, int]:
    """How many pairs are called different, and how many there are."""
    apart = [abs(math.log(b / a)) for group in of for a, b in combinations(group, 2)]
    return sum(value > half for value in apart), len(apart)


def fitted(found: Sequence[Groups], cell: Cell) -> tuple[Noise, float]:
    """A cell of the table, and the spread pooled over settings alone."""
    pooled = noise_of_repeats([group for own in found for group in own[cell]], 1, "")
    assert pooled is not None
    noise = pooled
    while any(c > 0.05 * n for c, n in counts(found, cell, noise) if n >= LEAST_PAIRS):
        noise = dataclasses.replace(noise, sd=1.005 * noise.sd)
    return noise, pooled.sd


def counts(found: Sequence[Groups], cell: Cell, noise: Noise) -> list[tuple[int, int]]:
    return [called(own[cell], noise.half((1, 1))) for own in found]


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.starts_table", description="Fit the table of how starts differ.")
    parser.add_argument("sets", type=Path, nargs="+")
    sets = parser.parse_args().sets
    frames = [starts_of(folder) for folder in sets]
    found = [by_cell(frame) for frame in frames]
    for cell in CELLS:
        noise, pooled = fitted(found, cell)
        of = ", ".join(f"{c} of {n}" for c, n in counts(found, cell, noise))
        print(f"{cell}: pooled {pooled:.4f}, table {noise.sd:.4f}, {noise.freedom} degrees of freedom; called: {of}")
    for folder, frame, own in zip(sets, frames, found, strict=True):
        others_have = {cell: fitted([other for other in found if other is not own], cell)[0] for cell in CELLS}
        with mock.patch.dict(starts.TABLE, {cell: (noise.sd, noise.freedom) for cell, noise in others_have.items()}):
            c, n = Starts(frame).identical_pairs()
        print(f"{folder.name}, by a table of the others: called: {c} of {n}")


if __name__ == "__main__":
    main()
