"""A line for each job that was measured (__main__.py): how much faster its second side is than its first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl

from nightsweep.analysis.sweep import precision
from nightsweep.jobs.host.facts import ROOT
from tests.bench.plain_loops.sides import SIDES


def starts(table: pl.DataFrame, settings: dict[str, Any]) -> tuple[dict[int, float], int]:
    """The mean step of each start with these settings, ms, by repeat; and how many something else disturbed."""
    own = table.filter(pl.col("status") == "ok", **settings)
    return dict(own.select("repeat", "step_ms_mean").iter_rows()), int(own["disturbed"].sum())


def main(out: Path) -> None:
    tools, names = "nightsweep.analysis.tools", [path.name for path in (out / "points").iterdir()]
    derive = [f"{tools}.derive", str(out), "--chunk", "0", "--points", *names]
    collect = [f"{tools}.collect", f"{out}/sweep.json", "--derived", f"{out}/derived", "--out", f"{out}/tables"]
    for command in (derive, collect):
        subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=True)
    table = pl.read_parquet(out / "tables/points.parquet")
    for job, (reference, other) in SIDES.items():
        (before, few), (after, more) = starts(table, reference), starts(table, other)
        if (found := precision.ratio(before, after)) is not None:
            low, high = found.interval
            known = f" ({1 / high:.3f} to {1 / low:.3f})" if low else ""
            each = " against ".join(", ".join(f"{ms:.1f}" for ms in side.values()) for side in (before, after))
            print(f"{job}: {each} ms; {1 / found.value:.3f} times as fast{known}; {few + more} disturbed")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
