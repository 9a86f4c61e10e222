"""How far starts differ in published data sets: what `TABLE` of analysis/sweep/starts.py is made from.

    python -m tests.bench.starts_table data/h200-2026-11-21 data/h200-2026-11-27 data/h200-2026-11-28

Of starts that nothing disturbed, by where both of a pair ran and what decides: the spread pooled over settings, or so
much more that in no set of LEAST_PAIRS pairs more than one in twenty would be called different.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import polars as pl

from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.sweep.starts import Noise, Starts, noise_of_repeats, what_decides

LEAST_PAIRS = 10
"""Fewer are of too few settings to tell."""
CELLS = [(one_host, kind) for one_host in (True, False) for kind in ("device", "mixed", "host", None)]
Cell = tuple[bool, str | None]


def starts_of(folder: Path) -> pl.DataFrame:
    """The starts of a data set. Where `points` has no SM activity yet, it is from the samples of the timed window."""
    points, steps, samples = (
        pl.scan_parquet(folder / f"tables/{name}.parquet") for name in ("points", "steps", "gpu_samples")
    )
    if "sm_active_percent" not in points.collect_schema():
        timed = steps.filter(phase="timed").group_by("point_id").agg(first=pl.min("start_ns"), last=pl.max("end_ns"))
        inside = samples.join(timed, on="point_id").filter(pl.col("t_ns").is_between("first", "last"), look="timed")
        active = inside.group_by("point_id").agg(pl.mean("sm_active_percent"))
        points = points.join(active, on="point_id", how="left")
    return dataset.undisturbed(Starts.of(points.collect(), steps).frame)


def groups(starts: pl.DataFrame) -> Iterator[tuple[Cell, list[float]]]:
    """Mean steps of starts of the same settings, with each cell that they count in."""
    for one_host in (True, False):
        for group in starts.partition_by(["settings", "host"] if one_host else ["settings"]):
            if group.height > 1 and (one_host or group["host"].n_unique() > 1):
                active = None if group["sm_active"].null_count() else float(group["sm_active"].mean())  # type: ignore[arg-type]
                for kind in {what_decides(active), None}:
                    yield (one_host, kind), group["ms"].to_list()


def called(of: Sequence[Sequence[float]], half: float) -> tuple[int, int]:
    """How many pairs are called different, and how many there are."""
    apart = [abs(math.log(b / a)) for group in of for a, b in combinations(group, 2)]
    return sum(value > half for value in apart), len(apart)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.starts_table", description="Fit the table of how starts differ.")
    parser.add_argument("sets", type=Path, nargs="+")
    found: list[dict[Cell, list[list[float]]]] = []
    for folder in parser.parse_args().sets:
        found.append(defaultdict(list))
        for cell, times in groups(starts_of(folder)):
            found[-1][cell].append(times)
    for cell in CELLS:
        noise = noise_of_repeats([group for own in found for group in own[cell]], 1, "")
        assert noise is not None
        sd = noise.sd
        while any(c > 0.05 * n for c, n in counts(found, cell, Noise(sd, noise.freedom, "")) if n >= LEAST_PAIRS):
            sd *= 1.005
        each = counts(found, cell, Noise(sd, noise.freedom, ""))
        of = ", ".join(f"{c} of {n}" for c, n in each)
        print(f"{cell}: pooled {noise.sd:.4f}, table {sd:.4f}, {noise.freedom} degrees of freedom; called: {of}")


def counts(found: Sequence[dict[Cell, list[list[float]]]], cell: Cell, noise: Noise) -> list[tuple[int, int]]:
    return [called(own[cell], noise.half((1, 1))) for own in found]


if __name__ == "__main__":
    main()
