"""Lines of a script that are to blame for a cause, as jobs/hook saw them at work."""

from __future__ import annotations

import dataclasses

from nightsweep.analysis.diagnosis.cause import Cause, Fact
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence

DOES = {
    "loader_wait": ("DataLoader",),
    "cpu_preprocessing": ("DataLoader",),
    "h2d_pageable": ("DataLoader", "copy to the GPU"),
    "h2d_exposed": ("DataLoader", "copy to the GPU"),
    "layout_transposes": ("copy from NHWC to NCHW",),
    "host_sync": ("wait for the GPU", "torch.cuda.synchronize"),
    "allocator_churn": ("torch.cuda.empty_cache",),
    "memory_pressure": ("torch.cuda.empty_cache",),
    "exposed_communication": ("DistributedDataParallel",),
    "slow_interconnect": ("DistributedDataParallel",),
}
"""What a line does that leads to this kind of cause."""
IN_ONE_STEP = ("copy to the GPU", "copy from NHWC to NCHW", "wait for the GPU")
"""What is counted in one step of the warm-up (jobs/hook/probe.py); all else is counted in the whole run."""
MOST_LINES = 3
"""Lines of one kind that are told, the most frequent first."""


def with_lines(e: Evidence, cause: Cause) -> Cause:
    """The cause with the script's lines among its evidence."""
    facts = []
    for what in DOES.get(cause.kind, ()):
        counts, where = dict[str, int](), "in one step" if what in IN_ONE_STEP else "in the run"
        for rank in e.results:
            for line, count in rank.places.get(what, {}).items():
                counts[line] = max(count, counts.get(line, 0))
        for line, count in sorted(counts.items(), key=lambda item: -item[1])[:MOST_LINES]:
            unit = "time" if count == 1 else "times"
            facts.append(Fact(f"{what}: {line}", count, f"{unit} {where}", "rankR.result.json"))
    return dataclasses.replace(cause, evidence=(*cause.evidence, *facts)) if facts else cause
