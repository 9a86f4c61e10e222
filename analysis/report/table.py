"""The table of points: results, and settings that vary."""

from __future__ import annotations

from typing import Any

import polars as pl

from nightsweep.analysis.sweep import dataset

# Result columns: heading, column, what it is divided by, decimals.
RESULTS = (
    ("ranks", "world_size", 1, 0),
    ("step (ms)", "step_ms_mean", 1, 2),
    ("step p95 (ms)", "step_ms_p95", 1, 2),
    ("median wait for data (ms)", "data_ms_median", 1, 2),
    ("samples/s", "samples_per_s", 1, 1),
    ("tokens/s", "tokens_per_s", 1, 0),
    ("MFU (%)", "mfu_percent", 1, 1),
    ("memory (GiB)", "peak_memory_bytes", 2**30, 2),
    ("energy (J)", "energy_j", 1, 1),
    ("J/step", "step_j", 1, 2),
    ("J/sample", "sample_j", 1, 3),
    ("SM clock (MHz)", "sm_clock_mhz", 1, 0),
    ("power limit (W)", "power_limit_w", 1, 0),
    ("at power limit (%)", "power_capped_percent", 1, 0),
    ("last loss", "loss_last", 1, 4),
    ("wall (s)", "wall_s", 1, 1),
)
FIRST = ("point", "status", "workload", "configuration")


def _remarks(row: dict[str, Any]) -> str:
    """What a reader must know of the numbers in a row, after its configuration."""
    found = [f"disturbed: {row['disturbed_reason']}"] if row["disturbed"] else []
    found += ["still warming up"] if row["steady"] is False else []
    return f" [{'; '.join(found)}]" if found else ""


def point_table(points: pl.DataFrame) -> dict[str, Any]:
    """Head and rows: id, status, workload, configuration, the results that some point has, and last the settings that
    vary within a workload. `numbers`: places of the first and last result, from 1; `settings`: of the first setting.
    """
    ordered = dataset.with_config(points)
    vary = {name for _, part in dataset.per_workload(ordered) for name in dataset.varying(part, but=())}
    names = [name for name in dataset.SETTINGS if name in vary]
    aside = ["round"] if ordered["round"].null_count() < ordered.height else []
    results = [r for r in RESULTS if ordered[r[1]].null_count() < ordered.height]
    rows = []
    for row in ordered.to_dicts():
        cells = [str(row["workload"]), row["config"] + _remarks(row)]
        cells += ["" if row[name] is None else f"{row[name] / scale:.{digits}f}" for _, name, scale, digits in results]
        cells += ["" if row[name] is None else str(row[name]) for name in (*aside, *names)]
        rows.append({"id": row["point_id"], "status": row["status"] or "", "cells": cells})
    return {
        "head": [*FIRST, *(r[0] for r in results), *aside, *names],
        "numbers": (len(FIRST) + 1, len(FIRST) + len(results)),
        "settings": len(FIRST) + len(results) + len(aside) + 1,
        "rows": rows,
        "statuses": sorted({row["status"] for row in rows}),
    }
