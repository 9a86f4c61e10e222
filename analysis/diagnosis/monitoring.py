"""What is not known: shares of 0, so that silence is not taken for health."""

from __future__ import annotations

from analysis.diagnosis.cause import Cause, Fact, Share, found
from analysis.diagnosis.evidence import Evidence

CAUSE = "monitoring"


def missing_trace(e: Evidence) -> list[Cause]:
    """There is no trace, none of some ranks, or it lacks something that rules need (ranges, launching calls, message
    sizes)."""
    facts = [Fact(what, why, "", "reports") for what, why in e.absent.items() if what.startswith("trace")]
    if not facts:
        return []
    return found(
        CAUSE,
        "missing_trace",
        Share(0.0),
        "none",
        method="what the traces hold",
        advice="trace all ranks, with CUDA calls, NVTX ranges of steps and loader, and NCCL's messages",
        remedy={"traced_steps": 3} if e.point and not e.point.traced_steps else {},
        evidence=facts,
    )


def missing_counters(e: Evidence) -> list[Cause]:
    """There are no counters of the GPU (NVML, GPM): nothing is known of clocks, heat, and other processes."""
    facts = [Fact(what, why, "", "gpu_samples") for what, why in e.absent.items() if what.startswith("counters")]
    if not facts:
        return []
    return found(
        CAUSE,
        "missing_counters",
        Share(0.0),
        "none",
        method="what the sampler's log holds",
        advice="sample the GPUs while the job runs, and give the log with --nvml",
        remedy={"nvml_hz": 10} if e.point and not e.point.nvml_hz else {},
        evidence=facts,
    )


RULES = (missing_trace, missing_counters)
