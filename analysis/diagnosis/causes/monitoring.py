"""What is not known: shares of 0, so that silence is not taken for health."""

from __future__ import annotations

from typing import Any

from analysis.diagnosis.cause import Cause, Fact, Share, list_cause
from analysis.diagnosis.causes.rule import Rule
from analysis.diagnosis.evidence.evidence import Evidence

CAUSE = "monitoring"


def missing_trace(e: Evidence) -> list[Cause]:
    """There is no trace, none of some ranks, or it lacks something that rules need (ranges, launching calls, message
    sizes)."""
    return _missing(
        e,
        "missing_trace",
        ("trace", "reports", "what the traces hold"),
        "trace all ranks, with CUDA calls, NVTX ranges of steps and loader, and NCCL's messages",
        {"traced_steps": 3} if e.point and not e.point.traced_steps else {},
    )


def missing_counters(e: Evidence) -> list[Cause]:
    """There are no counters of the GPU (NVML, GPM): nothing is known of clocks, heat, and other processes."""
    return _missing(
        e,
        "missing_counters",
        ("counters", "gpu_samples", "what the sampler's log holds"),
        "sample the GPUs while the job runs, and give the log with --nvml",
        {"nvml_hz": 10} if e.point and not e.point.nvml_hz else {},
    )


def _missing(e: Evidence, kind: str, source: tuple[str, str, str], advice: str, remedy: dict[str, Any]) -> list[Cause]:
    """What is absent of a source: (how its names begin, its table, what was looked at)."""
    begins, table, method = source
    facts = [Fact(what, why, "", table) for what, why in e.absent.items() if what.startswith(begins)]
    if not facts:
        return []
    return list_cause(CAUSE, kind, Share(0.0), "none", method=method, advice=advice, remedy=remedy, evidence=facts)


RULES = (
    Rule(CAUSE, missing_trace, traced=False, remark=True),
    Rule(CAUSE, missing_counters, traced=False, remark=True),
)
