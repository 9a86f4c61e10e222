"""The GPU has too little to do at once: work comes too late, in too small pieces, or only when the host has looked."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import polars as pl

from nightsweep.analysis.diagnosis.cause import Cause, Fact, replayed
from nightsweep.analysis.diagnosis.causes import memory_management
from nightsweep.analysis.diagnosis.causes.rule import HOST, LAUNCHES, OTHERS, Rule
from nightsweep.analysis.diagnosis.evidence import batch, messages, named_pauses, tensor_loops
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.remedies import proposals
from nightsweep.analysis.diagnosis.replay import changes, edit, masks, pauses, rank_changes
from nightsweep.analysis.diagnosis.replay.graph import marked
from nightsweep.analysis.diagnosis.thresholds import HEALTHY

MOST_BESIDE = 0.5
"""Of kernels outside of the model; assumed. To three scripts with less, CUDA graphs gave 51 to 92 % where 69 to 83 was
predicted; none with more was timed alone (docs/diagnosis-accuracy.md)."""
LEAST, LEAST_OF_SCRIPT = 1 / 3, 1 / 5
"""Of what cheap launches would give, where the interval begins. Of 24 scripts on which CUDA graphs were tried
thirteen became 24 to 92 % faster, one 3 %, four slower, and six did not end (tests/data/scripts/tried.json)."""


def launch_bound(e: Evidence) -> Iterator[Cause]:
    """The GPU is idle because the launching thread has not launched yet. The steps again, with launches as cheap as in
    a captured CUDA graph: on top of what is gained where the thread does not wait for batches, for the device or for
    memory. The interval begins at a third, of a script at a fifth, of which little may fit into a graph, or nothing.
    Before that, loops over tensors, an optimizer's or others, in which a few kernels without products repeat for each
    of many tensors: the steps again with all tensors taken at once (analysis/diagnosis/evidence/tensor_loops.py). Loops
    that give less than `healthy` are launches like others. A setting records graphs of the model: none is proposed
    where more than half of a script's kernels are launched outside of it."""
    loops = list(_loops(e))
    yield from loops
    copies = changes.without_offload if memory_management.offloads(e) else changes.with_batches_ahead
    joint = tuple(cause.change for cause in loops if cause.change is not None)
    first = (
        *joint, changes.without_loading, pauses.without_release, changes.without_close_waits,
        changes.without_allocations, copies,
    )  # fmt: skip
    advice = "launch less: CUDA graphs, or a larger batch; a compiler where it fuses many kernels"
    if e.compiled:  # still, there are many launches
        advice = (
            "launch less: CUDA graphs or a larger batch; and see whether the compiled model has breaks in its "
            "graphs (TORCH_LOGS=graph_breaks)"
        )
    if e.launched_beside > MOST_BESIDE:
        advice += "; most is launched outside of the model, of which no setting records a graph"
    larger = proposals.larger_batch(e.point, e.growth)
    yield Cause(
        gain=e.gain(*first, then=changes.without_launches).times(LEAST_OF_SCRIPT if e.is_script else LEAST),
        method="the steps replayed with launches that cost nothing",
        advice=advice,
        remedy=proposals.choose(e.point, *_graphs(e), *larger),
        evidence_of=functools.partial(_launches, e),
        change=edit.compose(changes.without_other_work, changes.without_launches),
    )  # both: what they give and neither alone


def _graphs(e: Evidence) -> tuple[proposals.Change, ...]:
    """The settings that record CUDA graphs, of the model alone: where it launches most."""
    return () if e.launched_beside > MOST_BESIDE else ({"cuda_graph": True}, {"compile": "reduce-overhead"})


def _launches(e: Evidence, rank: int | None) -> list[Fact]:
    graph = e.what_if.graph
    count, took = e.what_if.calls_a_step(marked(len(graph.calls.start), graph.work.call), rank)
    return [
        Fact("calls that launch kernels, copies or graphs", count, "a step", "runtime"),
        Fact("time in these calls", took / 1e6, "ms a step", "runtime"),
    ]


def _loops(e: Evidence) -> Iterator[Cause]:
    """Loops over tensors, an optimizer's or others."""
    found = [tensor_loops.joint(lane) for lane in e.lanes]
    change, all_of_it = e.scaled(found), pl.concat(found)
    gain = e.gain(change)
    if gain.value < HEALTHY.value:
        return
    if all_of_it["optimizer"].to_numpy().mean() > 0.5:
        remedy: tuple[proposals.Change, ...] = ({"optimizer_kernels": "fused"}, {"optimizer_kernels": "foreach"})
        advice = "a fused optimizer (fused=True, or foreach=True), which takes many tensors at once"
    else:
        remedy = _graphs(e)
        advice = (
            "do for many tensors at once what a loop does for each (torch._foreach_*, one joint tensor); where each "
            "needs the one before, CUDA graphs or a compiler"
        )
    yield Cause(
        gain=gain,
        method="the steps replayed with all tensors of a loop taken at once",
        advice=advice,
        remedy=proposals.choose(e.point, *remedy),
        evidence_of=functools.partial(_looped, e, found),
        change=change,
    )


def _looped(e: Evidence, found: list[pl.DataFrame], rank: int | None) -> list[Fact]:
    own = pl.concat(of_lane for lane, of_lane in zip(e.lanes, found, strict=True) if rank in (None, lane.rank))
    return [
        Fact("kernels of loops over tensors", own.height / e.what_if.graph.device_steps(rank), "a step", "kernels"),
        Fact("most tensors of a loop", int(own["often"].to_numpy().max()), "", "kernels"),
    ]


def single_process(e: Evidence) -> Iterator[Cause]:
    """One process drives several devices at once, as DataParallel does: only one of its threads at a time can hold
    Python's global interpreter lock (GIL). The steps again, with a process for each device, which does its share of the
    host's work and copies its own samples. Devices with less than half of the busiest one's kernels do not count, nor a
    model whose layers are spread over devices."""
    driven = max(rank_changes.devices_at_once(e.what_if.graph).values(), default=1)
    change = rank_changes.with_process_for_each_device
    if driven > 1:
        yield Cause(
            gain=e.gain(change),
            method="the steps replayed with a process for each device",
            advice="start a process for each GPU: DistributedDataParallel in place of DataParallel",
            remedy=proposals.choose(e.point, {"strategy": "ddp_ds"}),
            evidence=[Fact("devices that one process drives, at most", driven, "", "kernels")],
            change=change,
        )


def host_work(e: Evidence) -> Iterator[Cause]:
    """The launching thread does other work than loading and launching, for 1 ms or longer at a time: it writes a
    checkpoint, collects garbage, logs, or computes on the CPU. The steps again, without these pauses and the large
    copies from the device that they need. A pause in the middle of a pass or of the optimizer is none, for then the
    thread has no core, and launches late; but it is where many operators take long there: these compute on the CPU. And
    what steps that are long (`long_step`) again and again, evenly apart, add to the mean timed step more than to the
    traced one."""
    unseen = e.unseen_pauses / e.step_ns
    method = "the steps replayed without pauses of the launching thread, and its copies from the device for them"
    if unseen:
        method += "; and what long steps add that the trace does not have"
    yield Cause(
        gain=replayed(min(1.0, e.gain(changes.without_other_work).value + unseen)),
        method=method,
        advice="do this less often or in another process, and reserve a core for the launching thread",
        evidence_of=functools.partial(_pauses, e),
        change=changes.without_other_work,
        unseen=unseen,
    )


def _pauses(e: Evidence, rank: int | None) -> list[Fact]:
    longest = named_pauses.longest(e.lanes, e.what_if.graph, rank)
    return [
        *([Fact("long steps", e.unseen.long_told, "", "steps")] if e.unseen_pauses else []),
        *(Fact(f"pause in {where}", ms, "ms a step", "nvtx") for where, ms in longest),
    ]


def host_sync(e: Evidence) -> Iterator[Cause]:
    """The launching thread waits for the device in the middle of its work (`.item()`, a check of finiteness,
    synchronize) and so gives up its lead. The steps again, without these waits, and also without what launches cost
    between waits that are close. The share is the mean of the two; the interval begins at the quarter, for whoever does
    not read a number does not launch what computes it, either."""
    least, most = e.gain(changes.without_waits).value, e.gain(changes.without_close_waits).value
    yield Cause(
        gain=replayed((least + most) / 2, (3 * least + most) / 4, most),
        method="the steps replayed without waits for the device",
        advice="do not read values of the GPU within a step: keep them there, and read them once in many steps",
        remedy=proposals.choose(e.point, {"precision": "bf16"}) if e.setting("precision") == "fp16" else {},
        evidence_of=functools.partial(_waits, e),
        change=changes.without_close_waits,
    )


def _waits(e: Evidence, rank: int | None) -> list[Fact]:
    count, waited = e.what_if.calls_a_step(masks.synchronizing(e.what_if.graph), rank)
    return [
        Fact("calls that are seen to wait for the device", count, "a step", "runtime"),
        Fact("time in them", waited / 1e6, "ms a step", "runtime"),
    ]


def small_batch(e: Evidence) -> Iterator[Cause]:
    """Kernels have fewer blocks than the GPU has SMs, and the batch is small. Their time, times the share of SMs
    without a block: a larger batch fills these in the same time. And the optimizer's kernels, x (1 - 1/room for a
    larger batch), for a larger batch has as many. Of the time a sample. Where a step has several passes, a tenth
    (`healthy`) of the GPU or more has neither kernels nor messages, and memory has room, as many of them in one: the
    steps again, with these as one pass whose kernels have as many blocks."""
    together = max(n for n in range(1, max(e.room, 1) + 1) if e.passes % n == 0)
    facts = [Fact("SMs that get a block, mean over the time of kernels", batch.mean_fill(e), "share", "kernels")]
    busy = e.share(e.part("communication")).value + batch.mean_fill(e) * e.share(e.part("compute")).value
    small = together > 1 and busy < 1 - HEALTHY.value
    merged = [batch.merged(lane, together, e.passes) for lane in e.lanes] if small else []
    if any(own.height for own in merged):
        change = e.scaled(merged)
        yield Cause(
            gain=e.gain(change),
            method=f"the steps replayed with {together} passes in one",
            advice=f"let each pass have {together} times the samples, and accumulate less often",
            remedy=_fewer_passes(e, together),
            evidence=[*facts, Fact("forward passes of a step", e.passes, "", "ranks")],
            change=change,
        )
    elif batch.is_small(e):
        if e.setting("micro_batch") is not None:
            facts.append(Fact("samples of a forward pass", e.setting("micro_batch"), "", "points"))
        if e.memory is not None:
            facts.append(Fact("peak of reserved memory", e.memory[0] / e.memory[1], "share of the device's", "ranks"))
        yield Cause(
            gain=e.share(e.saved("underfilled") + batch.optimizer_saving(e)).times(0.5),
            method="sum over kernels of time x (1 - blocks / SMs), and optimizer, of the time a sample",
            advice="enlarge the batch of a forward pass",
            remedy=proposals.choose(e.point, *proposals.larger_batch(e.point, e.growth)) if e.point else {},
            evidence=facts,
        )


def _fewer_passes(e: Evidence, together: int) -> dict[str, Any]:
    """The setting, where the point has one: as many samples a step."""
    samples, passes = e.setting("micro_batch"), e.setting("grad_accum")
    if samples is None or passes is None:
        return {}
    return proposals.choose(e.point, {"micro_batch": samples * together, "grad_accum": passes // together})


def pipeline_bubble(e: Evidence) -> Iterator[Cause]:
    """Stages of a pipeline wait for their neighbours. The steps again without waiting for other ranks, where the stage
    with most work decides; sends and receives take as long as the shortest of the same size. With twice the
    micro-batches stages wait half as long, of the time a sample. Without settings a pipeline is known by ranks of which
    some send and receive at least half as often again as others, as stages between two others do, or each of which
    waits in sends and receives for a twentieth of the time or more."""
    if not messages.is_pipeline(e):
        return
    apart = edit.compose(rank_changes.without_others, e.scaled(messages.without_waits(e.lanes)))
    passes = e.setting("grad_accum")
    yield Cause(
        gain=e.gain(apart).times(1 / 3, 2 / 3, 1 / 2),
        method="half of what the steps gain where stages do not wait for each other, of the time a sample",
        advice="more micro-batches a step",
        remedy=proposals.choose(e.point, {"grad_accum": 2 * passes}) if passes else {},
        evidence=[Fact("micro-batches of a step", passes, "", "points")] if passes else [],
        change=apart,
    )


RULES = (
    Rule(launch_bound, LAUNCHES, above=2.5),
    Rule(single_process, HOST),
    Rule(small_batch, HOST, above=1.5),
    Rule(host_sync, HOST, above=1.5),
    Rule(host_work, HOST),
    Rule(pipeline_bubble, OTHERS),
)
