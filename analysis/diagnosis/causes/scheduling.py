"""Where the job was put: who else is on the GPU, how fast it may run, and how far its CPUs are."""

from __future__ import annotations

from collections.abc import Iterator

from nightsweep.analysis.diagnosis.cause import Cause, Fact, Share
from nightsweep.analysis.diagnosis.causes.rule import OTHERS, Rule
from nightsweep.analysis.diagnosis.evidence import samples
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.remedies import proposals
from nightsweep.analysis.diagnosis.thresholds import NOISE, Threshold


def gpu_shared(e: Evidence) -> Iterator[Cause]:
    """Other processes compute on the GPU. Time in which this rank's work runs or stands launched on an idle GPU
    (idle_queued), x (1 - 1/processes) x its share of the step: what others at work as long as this one take by turns.
    The lower end is idle_queued alone, since a process on the GPU may do nothing; half, where the others are the
    point's own tenants."""
    count, own, queued = e.tenants, (e.setting("tenants") or 1) > 1, e.part("idle_queued")
    alone, held = e.share(queued), e.part("compute") + queued
    if count < 2 and (e.samples or alone.value <= NOISE.value):
        return  # without counters work that stood still on an idle GPU must have waited for others
    duty = min(1.0, float(held.mean()) / e.step_ns) if held.size else 0.0
    likely = e.share(held * (1 - 1 / count) * duty)
    low = likely.value / 2 if own else alone.low
    high = min(1.0, max(likely.high, alone.high) / max(duty, 0.01))
    facts = [Fact("processes with a context on the GPU", count, "", "gpu_samples")] if count > 1 else []
    if e.lanes:
        idle = float(queued.mean()) / 1e6
        facts.append(Fact("launched, and the GPU idle in this trace", idle, "ms a step", "breakdown"))
    yield Cause(
        gain=Share(max(likely.value, alone.value), low, high),
        method="time of this rank's work x (1 - 1/processes) x its share of the step",
        advice="give the job GPUs of its own",
        remedy=proposals.choose(e.point, {"tenants": 1}, {"mps": True}) if own else {},
        evidence=facts,
    )


THROTTLED_SAMPLES = Threshold(
    0.05, "share", "Of the samples, those with a reason to throttle from which it counts.", "assumed"
)


def throttled(e: Evidence) -> Iterator[Cause]:
    """Clocks are held down by heat, the board's power brake, or fixed clocks; or by the power cap far below where dense
    products run into it. Compute time x share of such samples x (1 - their SM clock / the highest sampled)."""
    if not e.samples:
        return
    worst, facts = 0.0, []
    for rank, own in e.samples.items():
        held = samples.throttled_samples(own)
        part = held.height / own.height
        if part < THROTTLED_SAMPLES.value:
            continue
        clock = float((held["sm_clock_mhz"] / held["top_clock_mhz"]).mean())  # type: ignore[arg-type]
        worst = max(worst, part * (1 - clock))
        facts.append(Fact(f"rank {rank}: samples with {samples.reasons(held)}", part, "share", "gpu_samples"))
        facts.append(Fact(f"rank {rank}: SM clock then, over the highest", clock, "share", "gpu_samples"))
    if not facts:
        return
    share = e.share(e.part("compute")).times(0.0, worst) if e.lanes else Share(worst, 0.0, worst)
    yield Cause(
        gain=share,
        method="compute time x share of throttled samples x (1 - SM clock then / highest)",
        advice="cool the GPU, raise its power limit, or free its clocks",
        evidence=facts,
    )


def numa_far(e: Evidence) -> Iterator[Cause]:
    """The rank's CPUs are bound to a NUMA node that its GPU is not at. How much that takes cannot be seen in one run: a
    remark; it shows as slower copies (`h2d_exposed`) and launches (`launch_bound`)."""
    if e.setting("numa") != "far":
        return
    yield Cause(
        gain=Share(),
        method="as the point was bound",
        advice="bind ranks to the CPUs near their GPUs",
        remedy=proposals.choose(e.point, {"numa": "near"}, {"numa": "none"}),
        evidence=[Fact("CPUs of the ranks", "far", "", "points")],
    )


RULES = (
    Rule(gpu_shared, OTHERS, traced=False),
    Rule(throttled, OTHERS, traced=False),
    Rule(numa_far, OTHERS, traced=False, remark=True),
)
