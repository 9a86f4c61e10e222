"""One clock for all evidence of a look: the host's UTC, and between hosts rank 0's.

Steps, samples and events carry UTC and monotonic time of their host. A trace has a clock of its own, tied to UTC by the
tracer; the step loop's ranges, which are in the trace and in steps-rR.jsonl, tell by how much that is off. Between
hosts UTC is as good as NTP; there the ends of common collectives tell, which leave all ranks at the same time
(nsys_jax and TraceLens align so).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from analysis.metrics.steps import trace
from jobs.record.json_files import read_lines
from jobs.record.launch_files import RankResult, StepLine

_Row = dict[str, Any]
_Ints = npt.NDArray[np.int64]

COMMON = r"(?i)all_?reduce|all_?gather|reduce_?scatter"
"""Collectives that end everywhere at once."""


def compared(differences_ns: _Ints) -> _Row:
    """events, offset_us, residual_us, residual_max_us of differences between two clocks."""
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
    """What the step loop noted: step, start_ns (UTC), mono_ns."""
    lines = read_lines(folder / f"steps-r{rank}.jsonl", StepLine)
    rows = [(line.step, line.start_ns, line.mono_ns) for line in lines]
    return pl.DataFrame(rows, schema=dict.fromkeys(("step", "start_ns", "mono_ns"), pl.Int64), orient="row")


def utc_against_monotonic(folder: Path, rank: int) -> _Row:
    """How UTC strayed from the monotonic clock during the look."""
    steps = step_times(folder, rank).drop_nulls()
    away = (steps["start_ns"] - steps["mono_ns"]).to_numpy()
    row = compared(away - away[0] if len(away) else away)
    return {"rank": rank, "between": "utc-monotonic", **row}


def trace_against_steps(windows: pl.DataFrame, folder: Path, rank: int) -> _Row:
    """The trace's ranges of steps against the step loop's times. `windows`: the trace's table of this rank, on its own
    clock."""
    noted = step_times(folder, rank).select(pl.col("step").cast(pl.Int32), noted_ns="start_ns")
    began = windows.group_by("step").agg(pl.col("host_start_ns").min())
    both = began.join(noted, on="step").drop_nulls(["host_start_ns", "noted_ns"])
    differences = both.select(pl.col("host_start_ns") - pl.col("noted_ns")).to_series().to_numpy()
    return {"rank": rank, "between": "trace-steps", **compared(differences)}


def collectives(events: trace.Events) -> pl.DataFrame:
    """Ends of collectives that end everywhere at once: name, place (its number among those of its name), end_ns."""
    found = trace.lanes(events)["communication"].filter(pl.col("name").str.contains(COMMON)).sort("end_ns")
    return found.select("name", pl.int_range(pl.len()).over("name").alias("place"), "end_ns")


def between_ranks(ends: Mapping[int, pl.DataFrame]) -> list[_Row]:
    """Each rank's collectives against those of the first rank. Ranks whose counts differ are not compared."""
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
        rows.append({"rank": rank, "between": "ranks", **compared(differences)})
    return rows


AFTER_NS = 400_000_000
LEVEL_NS = 2_000_000_000
LEAST_PERCENT = 2.0


def age_of_counters(samples: pl.DataFrame, uuid: str, end_ns: int) -> float | None:
    """How old GPM values are, us: what they tell of work after `end_ns`, when the GPU was idle, over the level before.

    `samples`: gpu_samples of one look. None where there are no counters, or too little work to tell.
    """
    own = samples.filter(pl.col("uuid") == uuid).drop_nulls(["gpm_span_ns", "sm_active_percent"]).sort("t_ns")
    t = own["t_ns"].to_numpy() - end_ns
    begins, active = t - own["gpm_span_ns"].to_numpy(), own["sm_active_percent"].to_numpy()
    before = (begins > -LEVEL_NS) & (t <= 0)
    if not before.any() or not (t > AFTER_NS).any() or active[before].mean() < LEAST_PERCENT:
        return None
    overlap = np.clip(np.minimum(t, AFTER_NS) - np.maximum(begins, 0), 0, None)
    return float((overlap * active).sum() / active[before].mean()) / 1e3


def of_counters(samples: pl.DataFrame, results: Sequence[RankResult]) -> list[_Row]:
    """Rows of CLOCKS for the counters of the timed look; one a rank with a GPU."""
    timed = samples.filter(pl.col("look") == "timed")
    rows = []
    for result in results:
        if result.uuid and result.window:
            age = age_of_counters(timed, result.uuid, result.window.end_ns)
            known = {"events": 1, "offset_us": age} if age is not None else {"events": 0}
            rows.append({"rank": result.rank, "look": "timed", "between": "counters", **known})
    return rows


def _counts(ends: pl.DataFrame) -> dict[str, int]:
    return dict(ends.group_by("name").agg(pl.len()).iter_rows())


def of_hosts(rows: list[_Row], hosts: Mapping[int, str | None]) -> dict[str, int]:
    """What to take out of each host's times (ns) so that they agree with the first rank's host: the median over the
    host's ranks. Hosts that agree anyway, such as the first rank's own, are left out."""
    offsets: dict[str, list[float]] = {}
    home = hosts.get(min(hosts)) if hosts else None
    for row in rows:
        host = hosts.get(row["rank"])
        if row["offset_us"] is not None and host is not None and host != home:
            offsets.setdefault(host, []).append(row["offset_us"])
    return {host: round(float(np.median(found)) * 1e3) for host, found in offsets.items()}


def moved(frame: pl.DataFrame, columns: Sequence[str], key: pl.Expr, offsets: Mapping[Any, int]) -> pl.DataFrame:
    """The frame with an offset (ns) taken out of these columns, by the key of each row."""
    if not offsets or frame.is_empty():
        return frame
    return frame.with_columns(pl.col(columns) - key.replace_strict(offsets, default=0, return_dtype=pl.Int64))
