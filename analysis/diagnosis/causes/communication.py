"""Ranks talk while nothing computes: there is much to say, in small pieces, over a slow link, or one is late."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from analysis.diagnosis.cause import Cause, Fact, list_cause
from analysis.diagnosis.causes.rule import Rule
from analysis.diagnosis.evidence.evidence import Evidence, Floats
from analysis.diagnosis.evidence.lane import Lane
from analysis.diagnosis.evidence.link import bandwidth_between_ranks
from analysis.diagnosis.remedies import proposals as remedies
from analysis.diagnosis.thresholds import Threshold
from analysis.metrics import intervals
from analysis.metrics.intervals import Intervals
from analysis.metrics.steps import selection

CAUSE = "communication"
FACTOR = {"all_reduce": lambda n: 2 * (n - 1) / n, "all_gather": lambda n: n - 1, "reduce_scatter": lambda n: n - 1}
"""Bytes on the bus over the message size that NCCL tells (nccl-tests, doc/PERFORMANCE.md)."""


def communicates(e: Evidence) -> bool:
    return any(lane.exposed.calls.height for lane in e.lanes)


def calls(lane: Lane) -> pl.DataFrame:
    """Collectives of the lane's steps with on_bus, the bytes on the bus (null where sizes are unknown)."""
    begin, end = lane.steps["start_ns"].min(), lane.steps["end_ns"].max()
    own = lane.exposed.calls.filter(pl.col("start_ns").is_between(begin, end, closed="left"))
    ranks = pl.coalesce("ranks", "matched_ranks").cast(pl.Float64)
    bus = pl.when(pl.col("collective").is_null()).then(None).otherwise(pl.col("bytes").cast(pl.Float64))
    for kind, factor in FACTOR.items():
        bus = pl.when(pl.col("collective") == kind).then(pl.col("bytes") * factor(ranks)).otherwise(bus)
    return own.with_columns(on_bus=bus)


LARGE_MESSAGE = Threshold(
    16 << 20,
    "bytes",
    "From this size on the link, not the start of a message, decides.",
    "two H200s (tests/data/labelled, half tune): 0.35 to 0.58 of NVLink's rate from here on, 0.2 at 1 MiB",
)


REACHABLE_LINK = Threshold(
    0.55,
    "share",
    "Of the link's bandwidth, what large messages reach.",
    "two H200s: messages of 109 MB at 248 of 450 GB/s; of 64 and 128 MiB at 244 and 240 (launch_bound_fsdp2)",
)


def reachable_rate(e: Evidence) -> float:
    """Bus bandwidth that large messages reach: the best of the run, or what the link allows, bytes/s."""
    rates = [_rate(calls(lane).filter(pl.col("bytes") >= LARGE_MESSAGE.value)) for lane in e.lanes]
    return max([REACHABLE_LINK.value * bandwidth_between_ranks(e)[0], *rates])


def _rate(own: pl.DataFrame) -> float:
    known = own.drop_nulls(["transfer_ns", "on_bus"])
    return float(known["on_bus"].sum()) * 1e9 / max(float(known["transfer_ns"].sum()), 1.0)


SMALL_MESSAGE = Threshold(
    4 << 20,
    "bytes",
    "Collectives of smaller messages would gain from being one.",
    "two H200s (tests/data/h200-ranks): 3.8 us for 256 bytes, 5 us for 128 KiB; 0.19 of NVLink's rate at 2 MiB",
)


def small_saving(e: Evidence, lane: Lane) -> Floats:
    """Exposed transfer, ns a step, that small messages of a kind would save as one."""
    own = calls(lane).filter(pl.col("bytes") < SMALL_MESSAGE.value).drop_nulls(["transfer_ns", "on_bus"])
    saved = np.zeros(lane.steps.height)
    for part in own.partition_by("collective"):
        whole, steps = float(part["transfer_ns"].sum()), lane.steps.height
        merged = steps * float(part["transfer_ns"].min()) + float(part["on_bus"].sum()) * 1e9 / reachable_rate(e)  # type: ignore[arg-type]
        if part.height >= 2 * steps and whole > merged:
            saved += lane.summed(part["start_ns"], part["exposed_ns"].to_numpy() * (1 - merged / whole))
    return saved


def small_starts(lane: Lane) -> pl.DataFrame:
    """Small collectives of kinds of which a step has several: start_ns, and `saved`, the share of them that one in each
    step would make needless."""
    own = calls(lane).filter(pl.col("bytes") < SMALL_MESSAGE.value)
    kept = 1 / (pl.len().over("collective") / lane.steps.height)
    return own.select("start_ns", saved=1 - kept).filter(pl.col("saved") > 0)


def small_idle(lane: Lane) -> Intervals:
    """Idle time of the host until it has launched a small collective."""
    own = lane.dispatch
    return own[np.isin(own[:, 1], small_starts(lane)["start_ns"].to_numpy())]


def small_launching(lane: Lane) -> Floats:
    """Of this idle time, what one collective a step in place of many would save, ns a step."""
    idle, starts = small_idle(lane), small_starts(lane).sort("start_ns")
    saved = starts["saved"].to_numpy()[np.searchsorted(starts["start_ns"].to_numpy(), idle[:, 1])]
    return lane.summed(idle[:, 0], (idle[:, 1] - idle[:, 0]) * saved)


SLOW_LINK = Threshold(
    0.25,
    "share",
    "Bus bandwidth of large messages over the link's; less is slow.",
    "two H200s (tests/data/labelled): 0.35 to 0.55 over NVLink, 0.05 where NCCL goes through the host's memory",
)


def slow_saving(e: Evidence, lane: Lane) -> Floats:
    """Exposed transfer, ns a step, that a link as fast as it could be would save."""
    own = calls(lane).filter(pl.col("bytes") >= LARGE_MESSAGE.value)
    rate = _rate(own)
    if not own.height or rate >= SLOW_LINK.value * bandwidth_between_ranks(e)[0]:
        return np.zeros(lane.steps.height)
    return lane.summed(
        own["start_ns"],
        own["exposed_ns"].to_numpy() * (1 - rate / (REACHABLE_LINK.value * bandwidth_between_ranks(e)[0])),
    )


def small_messages(e: Evidence) -> list[Cause]:
    """Many small collectives, each of which takes about as long as an empty one. Exposed transfer of messages below
    `small_message` x (1 - time as one message / time of all), by kind of collective; one message takes as long as the
    shortest of them and its bytes at the bandwidth of large ones. And the idle time until the host has launched such a
    collective x (1 - 1/their number in a step)."""
    if not communicates(e):
        return []
    small = [calls(lane).filter(pl.col("bytes") < SMALL_MESSAGE.value) for lane in e.lanes]
    steps = sum(lane.steps.height for lane in e.lanes)
    frame = pl.concat(small)
    proposals: list[dict[str, Any]] = [{"ddp_bucket_mb": 25}, {"local_steps": 8}]
    return list_cause(
        CAUSE,
        "small_messages",
        e.share(e.of_lanes(lambda lane: small_saving(e, lane) + small_launching(lane) * e.host_scale)),
        "none",
        method="exposed transfer of small messages x (1 - time as one / time of all), and idle time till their launch",
        advice="send fewer and larger messages: larger buckets, flattened parameters",
        remedy=remedies.choose(e.point, *proposals) if e.point else {},
        evidence=[
            Fact("small collectives", frame.height / steps, "a step", "collectives"),
            Fact("their mean size", float(frame["bytes"].mean() or 0) / 1e3, "kB", "collectives"),  # type: ignore[arg-type]
        ],
    )


def slow_interconnect(e: Evidence) -> list[Cause]:
    """Large messages are slow for their link: bus bandwidth below `slow_link` of it. Their exposed transfer x (1 - bus
    bandwidth / what the link lets them reach)."""
    if not communicates(e):
        return []
    rate = max((_rate(calls(lane).filter(pl.col("bytes") >= LARGE_MESSAGE.value)) for lane in e.lanes), default=0.0)
    bandwidth, name = bandwidth_between_ranks(e)
    proposals: list[dict[str, Any]] = [{"comm_hook": "bf16"}, {"reduce_dtype": "bf16"}]
    return list_cause(
        CAUSE,
        "slow_interconnect",
        e.share(e.of_lanes(lambda lane: slow_saving(e, lane))),
        "communication",
        method="exposed transfer of large messages x (1 - bus bandwidth / reachable bandwidth)",
        advice="look at NCCL's choice of transport (NCCL_DEBUG=INFO); else send less",
        remedy=remedies.choose(e.point, *proposals) if e.point else {},
        evidence=[
            Fact("bus bandwidth of large messages", rate / 1e9, "GB/s", "collectives"),
            Fact(f"bandwidth of {name}", bandwidth / 1e9, "GB/s", "record.json"),
        ],
    )


def exposed_communication(e: Evidence) -> list[Cause]:
    """Transfer, not waiting, beside which nothing computes, less `small_messages` and `slow_interconnect`. What the
    compute time has room to hide, and half of the rest, for messages can be halved (bf16) or sent half as often; of
    local SGD what averaging every eighth step (or half as often) leaves out. All of it is the interval's upper end."""
    if not communicates(e):
        return []
    transfer = e.length(lambda lane: lane.exposed.transfer)
    left = np.maximum(0.0, transfer - e.of_lanes(lambda lane: small_saving(e, lane) + slow_saving(e, lane)))
    room = np.maximum(0.0, e.part("compute") - e.length(_hidden))
    able = np.minimum(left, room)
    periods = e.setting("local_steps") if e.setting("strategy") == "local_sgd" else None
    value = left * (1 - periods / max(8, 2 * periods)) if periods else able + (left - able) / 2
    share, whole = e.share(value), e.share(left)
    facts = [
        Fact("communication", float(e.length(_all).mean()) / 1e6, "ms a step", "collectives"),
        Fact("of it exposed transfer", float(transfer.mean()) / 1e6, "ms a step", "breakdown"),
    ]
    if not any(lane.exposed.matched for lane in e.lanes):
        facts.append(Fact("ranks that tell of it", 1, "", "reports"))
        share = share.times(0.0, value=1.0)  # some or all of it may be waiting for ranks without a trace
    return list_cause(
        CAUSE,
        "exposed_communication",
        share.__class__(share.value, share.low, whole.high if share.high is not None else None),
        "communication",
        method="exposed transfer, as far as compute can hide it, and half of the rest",
        advice="overlap communication with the backward pass, send less, or send less often",
        remedy=remedies.choose(e.point, *_less(e)) if e.point else {},
        evidence=facts,
    )


def _all(lane: Lane) -> intervals.Intervals:
    return selection.covered_time(lane.exposed.calls)


def _hidden(lane: Lane) -> intervals.Intervals:
    return intervals.intersect(_all(lane), lane.sets["compute"])


def _less(e: Evidence) -> list[remedies.Change]:
    if e.point is None:
        return []
    return [
        {"local_steps": max(8, 2 * e.point.local_steps)},
        {"zero_communication": "overlapped"},
        {"comm_hook": "bf16"},
        {"reduce_dtype": "bf16"},
        *remedies.larger_batch(e.point, e.growth),
        {"grad_accum": 4 * e.point.grad_accum},
    ]


def straggler(e: Evidence) -> list[Cause]:
    """Ranks wait in collectives for one that comes late, while nothing computes. The exposed waiting of the others for
    the rank that causes most of it, in most steps, as far as its own work, on the host or the device, takes longer than
    theirs; what it does instead. Silent where it comes last but is not slower (captures begin at other moments): then
    the other causes are looked for in this rank alone. Without such a rank all waiting, for ranks that take turns: half
    of that is the interval's lower end."""
    if not communicates(e) or e.setting("strategy") == "pp" or not e.waiting_for:
        return []
    if e.last is not None and e.straggler is None:
        return []
    rank = e.straggler
    if rank is None:
        share = e.share(np.sum(list(e.waiting_for.values()), axis=0), host=True).times(0.5)
    else:
        share = e.share(np.minimum(e.waiting_for[rank], e.behind(rank)), host=True)
    instead = _instead(e, rank)
    facts = [Fact(f"instead: {what}", ns / 1e6, "ms a step", "stragglers") for what, ns in instead]
    loading = bool(instead) and instead[0][0] == "range data"
    return list_cause(
        CAUSE,
        "straggler",
        share,
        "communication",
        method="exposed waiting in collectives for the rank that comes last",
        advice=(
            "ranks take turns at being late: steady their hosts"
            if rank is None
            else f"rank {rank} is late: look at what it does instead"
        ),
        remedy=remedies.choose(e.point, {"loader_workers": 4}) if loading and e.point else {},
        evidence=facts,
        rank=rank,
    )


def _instead(e: Evidence, rank: int | None) -> list[tuple[str, float]]:
    """What late ranks did while only they were missing: the three longest, ns a step."""
    if e.stragglers.is_empty():
        return []
    steps = {number for lane in e.lanes for number in lane.steps["step"]}
    own = e.stragglers.filter(pl.col("step").is_in(sorted(steps)), pl.col("instead") != "unrecorded")
    own = own if rank is None else own.filter(pl.col("rank") == rank)
    compute = pl.col("instead") == "compute"
    name = (
        pl.when(compute)
        .then(pl.lit("compute"))
        .otherwise(pl.concat_str("instead", "name", separator=" ", ignore_nulls=True))
    )
    total = (
        own.group_by(name.alias("what"))
        .agg(pl.col("duration_ns").sum())
        .sort("duration_ns", "what", descending=[True, False])
    )
    return [(what, ns / max(len(steps), 1)) for what, ns in total.head(3).iter_rows()]


RULES = (
    Rule(CAUSE, exposed_communication),
    Rule(CAUSE, small_messages),
    Rule(CAUSE, slow_interconnect),
    Rule(CAUSE, straggler),
)
