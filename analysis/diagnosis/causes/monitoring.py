"""What is not known: shares of 0, so that silence is not taken for health."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from nightsweep.analysis.diagnosis.cause import Cause, Fact, Share
from nightsweep.analysis.diagnosis.causes.rule import OTHERS, Rule
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.evidence.unseen import LEAST_TIMED
from nightsweep.analysis.diagnosis.remedies import proposals
from nightsweep.analysis.diagnosis.thresholds import Threshold
from nightsweep.jobs.record.launch_files import TOO_FEW, WHOLE_RUN


def missing_trace(e: Evidence) -> Iterator[Cause]:
    """There is no trace, none of some ranks, or it lacks something that rules need (ranges, launching calls, message
    sizes, the step after the only one that counts)."""
    facts = [Fact(what, why, "", "reports") for what, why in e.absent.items() if what.startswith("trace")]
    open_alone = [fact.what for fact in facts] == ["trace of the next step"]
    advice = "trace all ranks, with CUDA calls, NVTX ranges of steps and loader, and NCCL's messages"
    whole = any(result.step_source == WHOLE_RUN for result in e.results)
    if whole:
        advice = "have the script's steps found (docs/scripts.md, How steps are found), such as by nightsweep.step()"
        if e.point and any(TOO_FEW in note for result in e.results for note in result.notes):
            warm, timed, traced = e.point.warmup_steps, e.point.timed_steps, e.point.traced_steps
            advice = (
                f"let the script take more than {warm + timed + traced} steps ({warm} of warm-up, {timed} timed, "
                f"{traced} traced), or ask for fewer: `--steps` of wrap; `warmup_steps` and `timed_steps` of a sweep"
            )
    elif {"trace", "trace, in part"} <= e.absent.keys():
        advice = "copy or export the trace again, or trace again: no whole step of this one can be read"
    elif e.record.runs.traced.status == "failed":
        advice = "mend what failed in the traced run; it is in the record"
    elif open_alone:
        advice = "trace three steps at least: the first does not count, and where the last ends is not seen"
    few = e.point is not None and (not e.point.traced_steps or (open_alone and e.point.traced_steps < 3))
    yield from _missing(
        facts, method="what the traces hold", advice=advice, remedy={"traced_steps": 3} if few and not whole else {}
    )


def missing_counters(e: Evidence) -> Iterator[Cause]:
    """There are no counters of the GPU (NVML, GPM): nothing is known of clocks, heat, and other processes."""
    yield from _missing(
        [Fact(what, why, "", "gpu_samples") for what, why in e.absent.items() if what.startswith("counters")],
        method="what the sampler's log holds",
        advice="sample the GPUs while the job runs, and give the log with --nvml",
        remedy={"nvml_hz": 10} if e.point and not e.point.nvml_hz else {},
    )


SAMPLED = Threshold(
    0.05,
    "share",
    "By so much may the mean of the traced steps be off, as a standard error, before more steps are asked for.",
    "half of what is called healthy",
)
MOST_STEPS = 20
"""Of a trace that is asked for."""
QUARTILES = 1.349
"""How far apart a normal distribution's quartiles are, in standard deviations."""


def short_trace(e: Evidence) -> Iterator[Cause]:
    """Timed steps differ so much that the few traced ones may be unlike the rest: the spread of the slowest rank's
    (their quartiles, as a normal distribution's standard deviation), over the square root of how many are traced. What
    holds some steps up alone may then be missing, or count for too much: a remark."""
    timed, traced = e.unseen.slowest_ms.to_numpy(), e.traced_count
    if len(timed) < LEAST_TIMED or not 0 < traced < MOST_STEPS:
        return
    first, middle, third = np.quantile(timed, (0.25, 0.5, 0.75))
    spread = float((third - first) / QUARTILES / middle) if middle else 0.0
    if spread < SAMPLED.value * math.sqrt(traced):
        return
    wanted = 1 + min(MOST_STEPS, math.ceil((spread / SAMPLED.value) ** 2))  # the first does not count
    yield Cause(
        gain=Share(),
        method="how much the timed steps differ, and how many were traced",
        advice="trace more steps, for those that are traced may be unlike the others",
        remedy=proposals.choose(e.point, {"traced_steps": wanted}) if wanted > (e.setting("traced_steps") or 0) else {},
        evidence=[
            Fact("spread of the timed steps", spread, "share", "steps"),
            Fact("traced steps that count", traced, "", "trace"),
        ],
    )


def _missing(facts: list[Fact], **about: Any) -> Iterator[Cause]:
    if facts:
        yield Cause(gain=Share(), evidence=facts, **about)


RULES = (
    Rule(short_trace, OTHERS, remark=True),
    Rule(missing_trace, OTHERS, traced=False, remark=True),
    Rule(missing_counters, OTHERS, traced=False, remark=True),
)
