"""The cost of measuring: the table COST, from the control of a point (jobs/launch/control.py).

A block's time is the mean step of its slowest rank, without the block's first step, which refills the pipeline. The
samplers' blocks are compared with the neighbouring block of the same start; the tracer's, which need a separate start,
with the plain blocks of the pair's other start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from nightsweep.analysis.metrics.points.slowest_rank import slowest_rank
from nightsweep.analysis.readers import point_files
from nightsweep.jobs.record.json_files import read_lines
from nightsweep.jobs.record.launch_files import StepLine
from nightsweep.jobs.record.point_folder import by_rank
from nightsweep.jobs.record.record import Record

_Row = dict[str, Any]


def rows(point: Path, record: Record) -> list[_Row]:
    """Rows of COST, without the point's id."""
    found: list[_Row] = []
    turn = 0
    for pair, folder in by_rank(point, r"cost-plain-(\d+)"):
        plain = blocks(folder)
        for none, sampler in _neighbours(plain):
            name = f"{record.settings.get('nvml_hz')} Hz" if record.device == "cuda" else "host"
            found.append({"condition": "sampler", "tool": name, "pair": turn, **_comparison(sampler, none)})
            turn += 1
        traced = blocks(point / f"cost-tracer-{pair}")
        for condition in ("idle", "capturing"):
            mine, none = (traced.filter(pl.col("phase") == condition), plain.filter(pl.col("phase") == "none"))
            if not mine.is_empty() and not none.is_empty():
                found.append(
                    {"condition": condition, "tool": record.tracer.used, "pair": pair, **_comparison(mine, none)}
                )
    return found


def blocks(folder: Path) -> pl.DataFrame:
    """Blocks of one start: block, phase, steps, total_ms."""
    lines = [
        (rank, line.block, line.phase, line.step, point_files.step_ms(line))
        for rank, path in by_rank(folder, r"steps-r(\d+)\.jsonl")
        for line in read_lines(path, StepLine)
        if line.phase != "warmup"
    ]
    schema = {**dict.fromkeys(("rank", "block"), pl.Int64), "phase": pl.String, "step": pl.Int64, "step_ms": pl.Float64}
    frame = pl.DataFrame(lines, schema=schema, orient="row")
    later = frame.filter(pl.col("step") > pl.col("step").min().over("block"))
    kept = slowest_rank(later, "block", "phase")
    total = kept.group_by("block", "phase").agg(steps=pl.len().cast(pl.Int64), total_ms=pl.col("step_ms").sum())
    return total.sort("block")


def _neighbours(plain: pl.DataFrame) -> list[tuple[pl.DataFrame, pl.DataFrame]]:
    """Pairs (none, sampler) of neighbouring blocks."""
    rows_ = [plain[i] for i in range(plain.height)]
    pairs = [(a, b) for a, b in zip(rows_[::2], rows_[1::2], strict=False)]
    return [(a, b) if a["phase"][0] == "none" else (b, a) for a, b in pairs]


def _comparison(mine: pl.DataFrame, none: pl.DataFrame) -> _Row:
    step, plain = (float(f["total_ms"].sum()) / float(f["steps"].sum()) for f in (mine, none))
    return {"steps": int(mine["steps"].sum()), "step_ms": step, "plain_ms": plain, "ratio": step / plain}


def summary(cost: pl.DataFrame) -> pl.DataFrame:
    """Summarise COST by point, condition and tool.

    Returns:
        pairs, plain_ms (median), ratio (geometric mean), error (its standard error; null for one pair), low and high
        (the extremes).
    """
    ratio = pl.col("ratio")
    keys = ("point_id", "condition", "tool")
    made = cost.group_by(keys).agg(
        pairs=pl.len().cast(pl.Int64),
        plain_ms=pl.col("plain_ms").median(),
        ratio=ratio.log().mean().exp(),
        error=ratio.log().std() / pl.len().sqrt(),
        low=ratio.min(),
        high=ratio.max(),
    )
    order = pl.col("condition").replace_strict({"sampler": 0, "idle": 1, "capturing": 2}, default=3)
    return made.sort("point_id", order, "tool")
