"""What is not known: shares of 0, so that silence is not taken for health."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nightsweep.analysis.diagnosis.cause import Cause, Fact, Share
from nightsweep.analysis.diagnosis.causes.rule import OTHERS, Rule
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence


def missing_trace(e: Evidence) -> Iterator[Cause]:
    """There is no trace, none of some ranks, or it lacks something that rules need (ranges, launching calls, message
    sizes)."""
    yield from _missing(
        [Fact(what, why, "", "reports") for what, why in e.absent.items() if what.startswith("trace")],
        method="what the traces hold",
        advice="trace all ranks, with CUDA calls, NVTX ranges of steps and loader, and NCCL's messages",
        remedy={"traced_steps": 3} if e.point and not e.point.traced_steps else {},
    )


def missing_counters(e: Evidence) -> Iterator[Cause]:
    """There are no counters of the GPU (NVML, GPM): nothing is known of clocks, heat, and other processes."""
    yield from _missing(
        [Fact(what, why, "", "gpu_samples") for what, why in e.absent.items() if what.startswith("counters")],
        method="what the sampler's log holds",
        advice="sample the GPUs while the job runs, and give the log with --nvml",
        remedy={"nvml_hz": 10} if e.point and not e.point.nvml_hz else {},
    )


def _missing(facts: list[Fact], **about: Any) -> Iterator[Cause]:
    if facts:
        yield Cause(gain=Share(), evidence=facts, **about)


RULES = (
    Rule(missing_trace, OTHERS, traced=False, remark=True),
    Rule(missing_counters, OTHERS, traced=False, remark=True),
)
