"""The diagnosis of a sweep's point.

Of a point that is not ok nothing is said. Where its trace cannot be used, the timed run is diagnosed alone: one broken
trace must not keep a sweep from its report.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from nightsweep.analysis.diagnosis import verdict
from nightsweep.analysis.diagnosis.evidence import sources
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.verdict import Diagnosis
from nightsweep.jobs.record.point_folder import record_of


def diagnose_point(folder: Path, tables: Path) -> Diagnosis:
    """The diagnosis from a point's folder and the folder of its tables. A trace that cannot be used is
    missing, and says so on stderr."""
    if record_of(folder).status != "ok":
        return Diagnosis(Evidence(), None, {}, None, ())
    try:
        return verdict.judge(sources.from_point(folder, tables))
    except Exception as error:  # whatever a broken trace leads to
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        print(f"{folder}: diagnosed without its trace: {why}", file=sys.stderr)
    timed = sources.from_point(folder, tables, with_traces=False)
    return verdict.judge(dataclasses.replace(timed, absent={**timed.absent, "trace": why}))
