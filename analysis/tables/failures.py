"""The table of points that failed, and the closed list of reasons."""

from __future__ import annotations

import polars as pl

from nightsweep.analysis.tables.column import ID, Column
from nightsweep.jobs.record import failures

NO_RECORD = "no_record"
"""The reason of a point with status not_run that has no record."""

REASONS = (*failures.REASONS, NO_RECORD)
"""Why a point is not ok; null for ok."""

FAILURES: dict[str, Column] = {
    **ID,
    "status": Column(pl.String, "failed or cancelled.", "record.json"),
    "reason": Column(pl.String, "One of " + ", ".join(REASONS) + ".", "record.json"),
    "message": Column(pl.String, "The failure in one line.", "record.json"),
    "rank": Column(pl.Int64, "Rank that failed first; null where no rank failed.", "record.json"),
    "host": Column(pl.String, "Its host.", "record.json"),
    "exit_code": Column(pl.Int64, "Its exit code; null for a signal.", "record.json"),
    "signal": Column(pl.Int64, "The signal that ended it.", "record.json"),
    "traceback": Column(pl.String, "End of the traceback of the rank that failed first.", "rankR.traceback.txt"),
    "traceback_rank0": Column(pl.String, "End of rank 0's traceback or stack dump.", "rank0.traceback.txt"),
}
