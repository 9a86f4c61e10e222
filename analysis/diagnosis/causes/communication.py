"""Ranks talk while nothing computes: there is much to say, in small pieces, over a slow link, or one is late."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.cause import Cause, Fact, Share, replayed
from nightsweep.analysis.diagnosis.causes.rule import MESSAGES, OTHERS, Rule
from nightsweep.analysis.diagnosis.evidence import hooks, messages
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.evidence.lane import Lane
from nightsweep.analysis.diagnosis.evidence.link import bandwidth_between_ranks
from nightsweep.analysis.diagnosis.remedies import proposals as remedies
from nightsweep.analysis.diagnosis.replay import changes, rank_changes
from nightsweep.analysis.diagnosis.replay.edit import compose
from nightsweep.analysis.diagnosis.thresholds import NOISE
from nightsweep.analysis.metrics.steps import selection
from nightsweep.analysis.tables.part_names import BUSY

BUCKET_MB = 25
"""DistributedDataParallel's default; its first bucket has 1 MB."""


def communicates(e: Evidence) -> bool:
    """Whether collectives tell waiting from transfer; where they do not, `missing_trace` says what is needed."""
    return e.heard and any(lane.collectives.height for lane in e.lanes)


def small_messages(e: Evidence) -> Iterator[Cause]:
    """Many small collectives, each of which takes about as long as an empty one. The steps again, with one message of
    each kind below `large_message` in place of all: it takes as long as the shortest of them and its bytes at the
    bandwidth of large ones, and is launched once, with the few kernels that one thread launches between two of them, or
    with what FSDP2's hooks launch (analysis/diagnosis/evidence/hooks.py)."""
    if not communicates(e):
        return
    steps = sum(lane.steps.height for lane in e.lanes)
    frame = pl.concat(messages.small(e))
    averaged = _can_be_told(e) and 2 * (frame["collective"] == "all_reduce").sum() > frame.height
    change = messages.merged(e)
    yield Cause(
        gain=e.gain(change),
        method="the steps replayed with one small message of a kind in place of many",
        advice="send fewer and larger messages: larger buckets, flattened parameters",
        remedy=remedies.choose(e.point, {"ddp_bucket_mb": BUCKET_MB}, {"local_steps": 8}) if averaged else {},
        evidence=[
            Fact("small collectives", frame.height / steps, "a step", "collectives"),
            Fact("their mean size", float(frame["bytes"].mean() or 0) / 1e3, "kB", "collectives"),  # type: ignore[arg-type]
        ],
        change=change,
    )


def slow_interconnect(e: Evidence) -> Iterator[Cause]:
    """Large messages are slow for their link: bus bandwidth below half of what it lets them reach. The steps again,
    with these at what the link lets them reach, and with kernels that ran beside them held up for as much less long."""
    if not communicates(e):
        return
    bandwidth, name = bandwidth_between_ranks(e)
    change = messages.on_fast_link(e)
    yield Cause(
        gain=e.gain(change),
        method="the steps replayed with large messages at the reachable bandwidth",
        advice="look at NCCL's choice of transport (NCCL_DEBUG=INFO); else send less",
        remedy=remedies.choose(e.point, {"comm_hook": "bf16"}, {"reduce_dtype": "bf16"}) if _can_be_told(e) else {},
        evidence=[
            Fact("bus bandwidth of large messages", messages.large_rate(e) / 1e9, "GB/s", "collectives"),
            Fact(f"bandwidth of {name}", bandwidth / 1e9, "GB/s", "record.json"),
        ],
        change=change,
    )


def exposed_communication(e: Evidence) -> Iterator[Cause]:
    """Transfer, not waiting, that the step waits for, after `small_messages` and `slow_interconnect`. The steps again
    without communication, but for waiting for ranks that are late or for other stages of a pipeline, and with kernels
    that ran beside it as fast as alone (analysis/diagnosis/evidence/contention.py): compute could hide it. Of local SGD
    what averaging every eighth step (or half as often) leaves out. Of a script's DDP, or FSDP2 that sends or gathers
    in each pass of a step, all but that of one pass, with what these do for their messages. Half is the interval's
    lower end; the upper one is all of it and the error of replaying, for who sends less has less to put together."""
    if not communicates(e):
        return
    first = (messages.merged(e), messages.on_fast_link(e))
    unsent = e.scaled(messages.without_transfer(e.lanes)) if messages.is_pipeline(e) else changes.without_communication
    silent = compose(messages.beside_none(e), unsent)
    periods = e.setting("local_steps") if e.setting("strategy") == "local_sgd" else None
    saved = 1 - periods / max(8, 2 * periods) if periods else 1.0
    if _sends_in_each_pass(e):
        own = _bucketing if _averages(e) else hooks.launches_for_messages
        silent = compose(silent, e.removed(map(own, e.lanes)))
        saved = 1 - 1 / e.passes
    whole = e.gain(*first, then=silent)
    less = "send less or less often" if messages.hands_on(e) else "send less, less often, or in larger buckets"
    covered = e.length(lambda lane: selection.covered_time(lane.collectives))
    yield Cause(
        gain=Share(saved * whole.value, saved * whole.value / 2, whole.high),
        method="the steps replayed without communication and its slowing of kernels",
        advice=f"overlap communication with what is computed, {less}",
        remedy=remedies.choose(e.point, *_less(e)) if e.point else {},
        evidence=[
            Fact("communication", float(covered.mean()) / 1e6, "ms a step", "collectives"),
            Fact("of it beside no compute", float(e.part("communication").mean()) / 1e6, "ms a step", "breakdown"),
        ],
        change=compose(*first, silent),
    )


def _bucketing(lane: Lane) -> pl.DataFrame:
    """What DDP copies to its buckets, divided by the number of ranks, and from them: of the backward threads, which
    launch its collectives, copies on the device and products with a number (torch/csrc/distributed/c10d/reducer.cpp);
    such products of the model's backward pass count too, for the trace does not tell them apart."""
    threads = lane.own["kernels"].filter(pl.col("category").cast(pl.String) == "communication")["thread"].unique()
    copies = lane.own["copies"].filter(pl.col("direction") == "DtoD")
    products = lane.own["kernels"].filter(pl.col("name").cast(pl.String).str.contains(r"UnaryFunctor<.*MulFunctor"))
    both = pl.concat([rows.select("device", "stream", "start_ns", "thread") for rows in (copies, products)])
    return both.filter(pl.col("thread").is_in(threads.implode()))


def _averages(e: Evidence) -> bool:
    """Whether a script's gradients are averaged by DDP."""
    return any("DistributedDataParallel" in rank.places for rank in e.results)


def _sends_in_each_pass(e: Evidence) -> bool:
    """Whether a script has several passes a step, in each of which its DDP or FSDP2 sends or gathers."""
    if e.passes < 2 or not e.is_script:
        return False
    if not _averages(e):
        return all(map(hooks.sends_in_each_pass, e.lanes))
    return all(_sending_passes(lane) > (1 + 1 / e.passes) / 2 for lane in e.lanes)


def _sending_passes(lane: Lane) -> float:
    """The share of the backward passes in which collectives are launched: less than 1 where a script leaves them to the
    last pass of a step (no_sync). 1 where no ranges mark the passes, or where no launch of one is known."""
    passes = lane.events["nvtx"].filter(pl.col("name") == "backward").select("start_ns", "end_ns")
    launched = lane.collectives.filter(pl.col("collective") == "all_reduce")["launch_ns"].drop_nulls().sort()
    if passes.is_empty() or launched.is_empty():
        return 1.0
    before, after = (launched.search_sorted(passes[edge]) for edge in ("start_ns", "end_ns"))
    return float((after > before).mean())  # type: ignore[arg-type]


def _can_be_told(e: Evidence) -> bool:
    """Whether settings change what is sent: those of a script are arguments and hook of its DDP."""
    return e.point is not None and (not e.is_script or _averages(e))


def _in_small_buckets(e: Evidence) -> bool:
    """Whether DDP sends more than 1.5 times as many messages as its usual buckets would be (the first is smaller, and
    the last need not be full): of large ones, for small ones have another cause."""
    steps = sum(lane.steps.height for lane in e.lanes)
    averaged = pl.col("collective") == "all_reduce"
    sent = pl.concat([messages.calls(lane).filter(messages.LARGE, averaged) for lane in e.lanes])
    return sent.height / steps > 1.5 * (2 + float(sent["bytes"].sum()) / steps / (BUCKET_MB << 20))


def _less(e: Evidence) -> list[remedies.Change]:
    if e.point is None:
        return []
    if e.is_script:
        if not _averages(e):
            return []
        once = [{"no_sync": True}] if _sends_in_each_pass(e) else []
        larger = [{"ddp_bucket_mb": BUCKET_MB}] if _in_small_buckets(e) else []
        return [*once, *larger, {"comm_hook": "bf16"}]
    overlapped = e.point.strategy == "zero3" and e.point.zero_communication == "default"
    return [
        {"local_steps": max(8, 2 * e.point.local_steps)},
        *([] if overlapped else [{"zero_communication": "overlapped"}]),
        {"comm_hook": "bf16"},
        {"reduce_dtype": "bf16"},
        *remedies.larger_batch(e.point, e.growth),
        {"grad_accum": 4 * e.point.grad_accum},
    ]


def straggler(e: Evidence) -> Iterator[Cause]:
    """The device of one rank has more to do in a step than the others': kernels and copies take longer, or there are
    more. The steps again, each with no more work for any rank than the others have in the mean (right for a slower
    GPU), and with its work shared evenly (right for uneven batches): that of each step, or from one collective to the
    next where that gives more (some ranks have more before one alone). Where a rank launches more, its host has less to
    do, too. They are the ends of the interval, and the share is a quarter of the way from the latter to the former, as
    13 measured fixes have it (docs/diagnosis-accuracy.md); of ranks that share the work on one batch it is the latter.
    The rank is named that has more in every step; ranks may also be late in turns. A rank whose host is late has
    another cause, which names the rank. One that has no trace is named where its timed steps are longer than those of
    each other rank; but ranks that wait for each other in every step end it together."""
    if messages.is_pipeline(e):
        return
    if (untraced := _untraced_straggler(e)) is not None:
        yield untraced
        return
    if len({lane.rank for lane in e.lanes}) < 2:
        return
    gained = e.gain(rank_changes.with_device_of_others).value
    ways = (
        functools.partial(rank_changes.with_device_of_others, shared=True, by_part=by_part) for by_part in (False, True)
    )
    even = min(gained, max(e.gain(way).value for way in ways))
    if messages.hands_on(e):
        gained = even
    work = np.sum([e.part(part) for part in BUSY if part != "communication"], axis=0) / 1e6
    ranks, most = {e.lanes[place].rank for place in work.argmax(axis=0)}, work.max(axis=0)
    rank = ranks.pop() if len(ranks) == 1 else None
    whose = "of the rank that has most in a step" if rank is None else f"of rank {rank}"
    others = (work.sum(axis=0) - most) / (len(work) - 1)
    yield Cause(
        gain=replayed((3 * even + gained) / 4, even, gained),
        method="the steps replayed with as much work for each rank's device as the others have, or shared evenly",
        advice="give all ranks as much to compute in each step, and the same GPU",
        evidence=[
            Fact(f"kernels and copies {whose}", float(most.mean()), "ms a step", "breakdown"),
            Fact("of the others", float(others.mean()), "ms a step", "breakdown"),
        ],
        rank=rank,
        change=rank_changes.with_device_of_others,
    )


def _untraced_straggler(e: Evidence) -> Cause | None:
    """Of a rank that has no trace, if its median timed step is longer than that of the next by more than NOISE."""
    medians = e.steps.group_by("rank").agg(pl.col("step_ms").median()).drop_nulls().sort("step_ms", descending=True)
    if medians.height < 2:
        return None
    (rank, own), (_, second) = medians.head(2).rows()
    if rank in e.traced or own - second < NOISE.value * own:
        return None
    others = float(medians["step_ms"][1:].median())  # type: ignore[arg-type]
    return Cause(
        gain=replayed(1 - others / own),
        method="the median timed step of the slowest rank, with that of the others in its place",
        advice=f"trace rank {rank} (trace_ranks) to see what it does for longer",
        evidence=[
            Fact(f"median step of rank {rank}", own, "ms", "steps"),
            Fact("of the others", others, "ms", "steps"),
        ],
        rank=rank,
    )


RULES = (
    Rule(exposed_communication, OTHERS),
    Rule(small_messages, MESSAGES, above=2.5),
    Rule(slow_interconnect, OTHERS, above=1.5),
    Rule(straggler, OTHERS, leaves_compute=True),
)
