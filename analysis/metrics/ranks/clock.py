"""One clock for all measurements of a run: the host's UTC, and between hosts that of rank 0.

Steps, samples and events have UTC of their host as the launch found it, which later settings of the host's clock do not
move (jobs/host/clock.py). A trace has another clock, tied to UTC by the
tracer; the step loop's ranges, which are in the trace and in steps-rR.jsonl, show by how much that is off. Between
hosts UTC is as good as NTP; there the offset comes from the ends of common collectives, which end on all ranks at the
same time (nsys_jax and TraceLens align clocks like this).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nightsweep.analysis.metrics.steps import selection
from nightsweep.jobs.record.json_files import read_lines
from nightsweep.jobs.record.launch_files import RankResult, StepLine

_Row = dict[str, Any]
_Ints = npt.NDArray[np.int64]

COMMON = r"(?i)all_?reduce|all_?gather|reduce_?scatter"
"""Collectives that end everywhere at once."""


def compare(differences_ns: _Ints) -> _Row:
    """The columns events, offset_us, residual_us and residual_max_us of CLOCKS, from differences between two clocks."""
    if not len(differences_ns):
        return {"events": 0, "offset_us": None, "residual_us": None, "residual_max_us": None}
    middle = float(np.median(differences_ns))
    away = np.abs(differences_ns - middle)
    return {
        "events": len(differences_ns),
        "offset_us": middle / 1e3,
        "residual_us": float(np.median(away)) / 1e3,
        "residual_max_us": float(away.max()) / 1e3,
    }


def step_times(folder: Path, rank: int) -> pl.DataFrame:
    """What the step loop noted: step, start_ns (UTC)."""
    lines = read_lines(folder / f"steps-r{rank}.jsonl", StepLine)
    rows = [(line.step, line.start_ns) for line in lines]
    return pl.DataFrame(rows, schema=dict.fromkeys(("step", "start_ns"), pl.Int64), orient="row")


def trace_row(windows: pl.DataFrame, folder: Path, rank: int) -> _Row:
    """The row of CLOCKS of the trace's ranges of steps against the step loop's times.

    `windows`: the trace's table of this rank, on the trace's clock.
    """
    recorded = step_times(folder, rank).select(pl.col("step").cast(pl.Int32), recorded_ns="start_ns")
    began = windows.group_by("step").agg(pl.col("host_start_ns").min())
    both = began.join(recorded, on="step").drop_nulls(["host_start_ns", "recorded_ns"])
    differences = both.select(pl.col("host_start_ns") - pl.col("recorded_ns")).to_series().to_numpy()
    return {"rank": rank, "between": "trace-steps", **compare(differences)}


def collective_ends(events: selection.Events) -> pl.DataFrame:
    """Ends of collectives that end everywhere at once: name, place (its number among those of its name), end_ns."""
    found = selection.split_by_kind(events)["communication"].filter(pl.col("name").str.contains(COMMON)).sort("end_ns")
    return found.select("name", pl.int_range(pl.len()).over("name").alias("place"), "end_ns")


def rank_rows(ends: Mapping[int, pl.DataFrame]) -> list[_Row]:
    """The rows of CLOCKS of each rank's collectives against the first rank's; ranks whose counts differ have no offset.

    `ends`: of each rank, as in `collective_ends`.
    """
    if not ends:
        return []
    first = min(ends)
    counts = _counts(ends[first])
    rows = []
    for rank, mine in ends.items():
        if rank == first:
            continue
        both = mine.join(ends[first], on=["name", "place"], suffix="_first")
        same = _counts(mine) == counts
        differences = (both["end_ns"] - both["end_ns_first"]).to_numpy() if same else np.empty(0, np.int64)
        rows.append({"rank": rank, "between": "ranks", **compare(differences)})
    return rows


AFTER_NS = 400_000_000
"""Time after the window in which old values still show its work: more than counters are ever late."""
LEVEL_NS = 2_000_000_000
"""Time before the end of the window that gives the level of its work."""
LEAST_PERCENT = 2.0
"""Least level (SM activity) whose end can be seen."""


def counter_age(samples: pl.DataFrame, uuid: str, end_ns: int) -> float | None:
    """How old GPM values are, us: the work that they show after it ended, over the level before.

    Args:
        samples: gpu_samples of one run.
        uuid: of the GPU.
        end_ns: when its work ended, ns on the clock of the samples.

    Returns:
        None where there are no counters, or where the end of the work cannot be seen: there was little, the GPU worked
        on after it, or less before it than at the end.
    """
    own = samples.filter(pl.col("uuid") == uuid).drop_nulls(["gpm_span_ns", "sm_active_percent"]).sort("t_ns")
    t = own["t_ns"].to_numpy() - end_ns
    begins, active = t - own["gpm_span_ns"].to_numpy(), own["sm_active_percent"].to_numpy()
    before = (begins > -LEVEL_NS) & (t <= 0)
    later = active[t > AFTER_NS]
    if not before.any() or active[before].mean() < LEAST_PERCENT or not later.size or later[0] >= LEAST_PERCENT:
        return None
    overlap = np.clip(np.minimum(t, AFTER_NS) - np.maximum(begins, 0), 0, None)
    age_ns = float((overlap * active).sum() / active[before].mean())
    return age_ns / 1e3 if age_ns < AFTER_NS else None


def counter_rows(samples: pl.DataFrame, results: Sequence[RankResult]) -> list[_Row]:
    """Rows of CLOCKS for the counters of the timed run; one a rank with a GPU."""
    timed = samples.filter(pl.col("look") == "timed")
    rows = []
    for result in results:
        if result.uuid and result.window:
            age = counter_age(timed, result.uuid, result.window.end_ns)
            known = {"events": 1, "offset_us": age} if age is not None else {"events": 0}
            rows.append({"rank": result.rank, "look": "timed", "between": "counters", **known})
    return rows


def _counts(ends: pl.DataFrame) -> dict[str, int]:
    return dict(ends.group_by("name").agg(pl.len()).iter_rows())


def host_offsets(rows: list[_Row], hosts: Mapping[int, str | None]) -> dict[str, int]:
    """The offset (ns) of each host's clock to that of the first rank's host: the median over the host's ranks.

    The first rank's host, and hosts without a known offset, are left out.
    """
    offsets: dict[str, list[float]] = {}
    home = hosts.get(min(hosts)) if hosts else None
    for row in rows:
        host = hosts.get(row["rank"])
        if row["offset_us"] is not None and host is not None and host != home:
            offsets.setdefault(host, []).append(row["offset_us"])
    return {host: round(float(np.median(found)) * 1e3) for host, found in offsets.items()}


def subtract_offsets(
    frame: pl.DataFrame, columns: Sequence[str], key: pl.Expr, offsets: Mapping[Any, int]
) -> pl.DataFrame:
    """The frame with an offset (ns) subtracted from these columns, by the key of each row."""
    if not offsets or frame.is_empty():
        return frame
    return frame.with_columns(pl.col(columns) - key.replace_strict(offsets, default=0, return_dtype=pl.Int64))
