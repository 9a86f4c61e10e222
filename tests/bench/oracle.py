"""What `nsys stats` says of an export, to compare our tables with."""

from __future__ import annotations

import csv
import io
import re
import subprocess
from pathlib import Path

import polars as pl

REPORTS = {
    "kernel_sum": "cuda_gpu_kern_sum",
    "api_sum": "cuda_api_sum",
    "copy_time_sum": "cuda_gpu_mem_time_sum",
    "copy_size_sum": "cuda_gpu_mem_size_sum",
    "nvtx_sum": "nvtx_sum",
    "nvtx_gpu_sum": "nvtx_gpu_proj_sum",
}
"""Our table to the report that says the same."""
_NAMES = ("Name", "Operation", "Range")
_COUNTS = ("Instances", "Num Calls", "Count", "Range Instances")
MEGABYTE = 1_000_000


def asked(export: Path, nsys: str = "nsys") -> dict[str, str]:
    """The reports of an SQLite export as CSV, by our table's name; absent where nsys has nothing to say."""
    told = {}
    for table, report in REPORTS.items():
        command = [nsys, "stats", "--quiet", "--force-export=false", "--format=csv", f"--report={report}", str(export)]
        done = subprocess.run(command, capture_output=True, text=True)
        if any(line.startswith(("Time", "Total", "Range")) for line in done.stdout.splitlines()):
            told[table] = done.stdout
    return told


def rows(text: str) -> dict[tuple[str, str], dict[str, float]]:
    """Name and style of each row to total, count, mean, median, min, max and std; sizes in MB."""
    lines = text.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith(("Time", "Total", "Range")))
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[first:]))):
        name = next(row[key] for key in _NAMES if key in row).removeprefix(":")
        name = _VERSION.sub("", name)  # nsys takes versions of four digits off the name, and leaves longer ones
        name = name.removeprefix("[CUDA memcpy ").removesuffix("]").replace("[CUDA memset", "Memset")
        key = name, row.get("Style", "")
        count = float(next(row[title] for title in _COUNTS if row.get(title)))
        told = {"total": _number(row, "Total"), "count": count}
        told |= {ours: _number(row, theirs) for ours, theirs in _COLUMNS.items()}
        found[key] = _added(found[key], told) if key in found else told
    return found


def _added(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Two versions of a call as one: what can be told of them together."""
    return {
        "total": one["total"] + other["total"],
        "count": one["count"] + other["count"],
        "min": min(one["min"], other["min"]),
        "max": max(one["max"], other["max"]),
    }


_VERSION = re.compile(r"(?<=\w)_v\d+$")
_COLUMNS = {"mean": "Avg", "median": "Med", "min": "Min", "max": "Max", "std": "StdDev"}


def _number(row: dict[str, str], key: str) -> float:
    """A column by what its title holds: `Total Time (ns)`, `Total (MB)`, or of a projection `Total Proj Time (ns)`."""
    titles = [t for t in row if t.startswith((f"Proj {key}", f"{key} Proj"))] or [t for t in row if t.startswith(key)]
    return float(row[titles[0]] or 0)


def whole(ours: pl.DataFrame) -> pl.DataFrame:
    """Sums of all ranks of a report together, as nsys has them: of several ranks without median and deviation."""
    if ours["rank"].n_unique() < 2:
        return ours
    keys = [column for column in ("name", "domain", "style") if column in ours.columns]
    totals = ours.group_by(keys).agg(pl.col("total", "count").sum(), pl.col("min").min(), pl.col("max").max())
    return totals.with_columns(mean=pl.col("total") / pl.col("count"))


def differences(table: str, ours: pl.DataFrame, text: str) -> list[str]:
    """Where our sums and nsys' differ, a line each: totals, counts, least and largest must be the same to the last
    digit that nsys prints, as must means, medians and deviations."""
    theirs, mine = rows(text), {}
    size = table == "copy_size_sum"
    for row in whole(ours).iter_rows(named=True):
        name = f"{row['domain']}:{row['name']}" if row.get("domain") else row["name"]
        mine[name, row.get("style", "") or ""] = row
    out = [f"{key}: only {'nsys' if key in theirs else 'we'} have it" for key in theirs.keys() ^ mine.keys()]
    for key in theirs.keys() & mine.keys():
        for column, value in theirs[key].items():
            if column not in mine[key]:
                continue
            own = float(mine[key][column] or 0) / (MEGABYTE if size and column != "count" else 1)
            off = 0.00051 if size else 0.0500001 if column in ("mean", "median", "std") else 0
            if abs(own - value) > off:
                out.append(f"{key} {column}: nsys {value}, we {own}")
    return out
