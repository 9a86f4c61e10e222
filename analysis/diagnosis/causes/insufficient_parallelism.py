"""The GPU has too little to do at once: work comes too late, in too small pieces, or only when the host has looked."""

from __future__ import annotations

import polars as pl

from analysis.diagnosis.cause import Cause, Fact, Share, list_cause
from analysis.diagnosis.causes import communication, memory_management
from analysis.diagnosis.causes.rule import Rule
from analysis.diagnosis.evidence import batch
from analysis.diagnosis.evidence.evidence import Evidence, Floats
from analysis.diagnosis.evidence.lane import Lane
from analysis.diagnosis.remedies import proposals
from analysis.diagnosis.thresholds import BATCH_GROWTH, PAUSE
from analysis.metrics import intervals
from analysis.metrics.intervals import Intervals

CAUSE = "insufficient_parallelism"
GRAPHS = {"cuda_graph": True}


def late_host(e: Evidence, lane: Lane) -> Intervals:
    """Idle time of a host that is too slow, and no other rule's."""
    taken = intervals.merge(memory_management.offloaded_idle(e, lane), communication.small_idle(lane))
    own = intervals.subtract(lane.dispatch, taken)
    return own if e.shared else intervals.merge(own, lane.sets["idle_queued"])


def launch_bound(e: Evidence) -> list[Cause]:
    """The GPU is idle because the launching thread has not launched yet: it dispatches, launches, or does other work in
    a step. All such idle time that no wait (`host_sync`, `h2d_*`, `allocator_churn`) led to. CUDA graphs or a compiler
    can gain nearly all of what is dispatch; at least half is taken for the interval's lower end."""
    amount = e.length(lambda lane: late_host(e, lane))
    known = any(lane.launches_known for lane in e.lanes)
    share = e.share(amount, host=True).times(0.5 if known else 0.0, value=1.0)
    pauses = e.share(e.length(lambda lane: _long(late_host(e, lane))), host=True)
    launches = e.of_lanes(lambda lane: lane.summed(_launches(lane)))
    facts = [
        Fact("idle for want of launches", float(amount[e.judged].mean()) / 1e6, "ms a step", "breakdown"),
        Fact("kernels, copies and graphs launched", float(launches[e.judged].mean()), "a step", "kernels"),
        Fact("of the idle time, in pauses of the host of 1 ms and more", pauses.value, "share of the step", "runtime"),
    ]
    works = pauses.value > share.value / 2
    if works:
        advice = (
            "move what the launching thread does between launches to other processes, and give it a core of its own"
        )
        change = {}
    else:
        advice = "launch less: CUDA graphs, a compiler, or a larger batch"
        if e.compiled:  # and yet so many launches
            advice = (
                "launch less: CUDA graphs or a larger batch; and see whether the compiled model has breaks in its "
                "graphs (TORCH_LOGS=graph_breaks)"
            )
        change = proposals.choose(e.point, GRAPHS, {"compile": "default"}, *proposals.larger_batch(e.point, e.growth))
    method = "idle time of the device by what its launching thread did, less what waits for the device led to"
    if not known:
        method = "idle time of the device: the trace does not tell what its launching thread did"
    return list_cause(CAUSE, "launch_bound", share, "idle", method=method, advice=advice, remedy=change, evidence=facts)


def _long(idle: Intervals) -> Intervals:
    return idle[idle[:, 1] - idle[:, 0] >= PAUSE.value]


def _launches(lane: Lane) -> pl.Series:
    """When what each launch began starts on the device."""
    frames = [frame.select("launch_ns", "start_ns").unique("launch_ns") for frame in lane.own.values()]
    return pl.concat(frames)["start_ns"]


def host_sync(e: Evidence) -> list[Cause]:
    """The launching thread waits for the device in the middle of its work (`.item()`, a check of finiteness,
    synchronize) and so gives up its lead. The idle time that follows, at most as much as was waited
    (analysis/diagnosis/evidence/idle.py)."""
    share = e.share(e.length(lambda lane: lane.lost["sync"]), host=True)
    count, waited = waits_of(e, "sync")
    facts = [
        Fact("calls that waited for the device", float(count[e.judged].mean()), "a step", "runtime"),
        Fact("time in them", float(waited[e.judged].mean()) / 1e6, "ms a step", "runtime"),
    ]
    change = proposals.choose(e.point, {"precision": "bf16"}) if e.setting("precision") == "fp16" else {}
    advice = "do not read values of the GPU within a step: keep them there, and read them every so many steps"
    method = "idle time after waits for the device, at most as long as these"
    return list_cause(CAUSE, "host_sync", share, "idle", method=method, advice=advice, remedy=change, evidence=facts)


def waits_of(e: Evidence, *why: str) -> tuple[Floats, Floats]:
    """Calls that waited for the device for these reasons, and ns in them, of each lane and step."""
    own = {id(lane): lane.waits.filter(pl.col("why").is_in(why)) for lane in e.lanes}
    return (
        e.of_lanes(lambda lane: lane.summed(own[id(lane)]["end_ns"])),
        e.of_lanes(lambda lane: lane.summed(own[id(lane)]["end_ns"], own[id(lane)]["waited_ns"])),
    )


def small_batch(e: Evidence) -> list[Cause]:
    """Kernels have fewer blocks than the GPU has SMs, and the batch is small. Their time, times the share of SMs
    without a block: a larger batch fills these in the same time. And the gaps between kernels that were launched in
    time (idle_between), x (1 - 1/`batch_growth`), and the optimizer's kernels, x (1 - 1/room for a larger batch), for
    a larger batch has as many. Of the time a sample."""
    if not batch.is_small(e):
        return []
    between = e.part("idle_between")
    gaps = between * (1 - 1 / BATCH_GROWTH.value)
    share = e.share(e.kernels["underfilled"] + gaps + batch.optimizer_saving(e)).times(0.5)
    facts = [*fill(e), Fact("between kernels launched in time", float(between.mean()) / 1e6, "ms a step", "breakdown")]
    if e.point is not None:
        facts.append(Fact("samples of a forward pass", e.point.micro_batch, "", "points"))
    if e.memory is not None:
        facts.append(Fact("peak of reserved memory", e.memory[0] / e.memory[1], "share of the device's", "ranks"))
    change = proposals.choose(e.point, *proposals.larger_batch(e.point, e.growth)) if e.point else {}
    method = "sum over kernels of time x (1 - blocks / SMs), gaps between them, and optimizer, of the time a sample"
    return list_cause(
        CAUSE,
        "small_batch",
        share,
        "compute",
        method=method,
        advice="enlarge the batch of a forward pass",
        remedy=change,
        evidence=facts,
    )


def underfilled_share(e: Evidence) -> Share:
    """Time of kernels without blocks for all SMs, times the share of SMs without one."""
    return e.share(e.kernels["underfilled"]).times(0.5)


def fill(e: Evidence) -> list[Fact]:
    return [Fact("SMs that get a block, mean over the time of kernels", batch.mean_fill(e), "share", "kernels")]


def pipeline_bubble(e: Evidence) -> list[Cause]:
    """Stages of a pipeline wait for their neighbours. Waiting in sends and receives that nothing hides; twice the
    micro-batches halve it."""
    if e.setting("strategy") != "pp" or e.point is None:
        return []
    share = e.share(e.length(lambda lane: lane.exposed.waiting)).times(0.25, 1.0, 0.5)
    facts = [Fact("micro-batches of a step", e.point.grad_accum, "", "points")]
    change = proposals.choose(e.point, {"grad_accum": 2 * e.point.grad_accum})
    method = "half of the exposed waiting in collectives, of the time a sample"
    return list_cause(
        CAUSE,
        "pipeline_bubble",
        share,
        "communication",
        method=method,
        advice="more micro-batches a step",
        remedy=change,
        evidence=facts,
    )


RULES = (
    Rule(CAUSE, launch_bound),
    Rule(CAUSE, small_batch),
    Rule(CAUSE, host_sync),
    Rule(CAUSE, pipeline_bubble),
)
