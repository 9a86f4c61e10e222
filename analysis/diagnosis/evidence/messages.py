"""Collectives: how fast they were, and what would be left of them if they were fewer, or their link as fast as it could
be."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from nightsweep.analysis.diagnosis.evidence import hooks
from nightsweep.analysis.diagnosis.evidence.contention import slowdowns
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.evidence.lane import Lane
from nightsweep.analysis.diagnosis.evidence.link import bandwidth_between_ranks
from nightsweep.analysis.diagnosis.replay.measured import PLACE
from nightsweep.analysis.diagnosis.replay.what_if import Change
from nightsweep.analysis.diagnosis.thresholds import LARGE_MESSAGE, REACHABLE_LINK

FEW = 5
"""Kernels between two small messages, at most, from which a loop over tensors is seen: a division, a norm, a clamp. A
pass of the model, whose gradients are sent as they come, has more."""
FACTOR = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    **dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), lambda n: n - 1),
}
"""Bytes on the bus over the message size that NCCL tells (nccl-tests, doc/PERFORMANCE.md)."""
LARGE = pl.col("bytes") >= LARGE_MESSAGE.value
SENT = pl.col("collective") == "send_recv"
TURNS = 0.05
"""Share of the time. Where all ranks exchange data at once, those that are late hardly wait; assumed."""


def calls(lane: Lane) -> pl.DataFrame:
    """Collectives of the lane's steps with on_bus, the bytes on the bus (null where sizes are unknown)."""
    begin, end = lane.steps["start_ns"].min(), lane.steps["end_ns"].max()
    own = lane.collectives.filter(pl.col("start_ns").is_between(begin, end, closed="left"))
    ranks = pl.coalesce("ranks", "matched_ranks").cast(pl.Float64)
    # Of an all-to-all ranks may send different amounts; it takes as long as the largest.
    most = pl.when(pl.col("collective") == "all_to_all").then((pl.col("total_bytes") / ranks).cast(pl.Int64))
    own = own.with_columns(bytes=pl.coalesce(most, "bytes"))
    bus = pl.when(pl.col("collective").is_null()).then(None).otherwise(pl.col("bytes").cast(pl.Float64))
    for kind, factor in FACTOR.items():
        bus = pl.when(pl.col("collective") == kind).then(pl.col("bytes") * factor(ranks)).otherwise(bus)
    return own.with_columns(on_bus=bus)


def large_rate(e: Evidence) -> float:
    """Bus bandwidth of large messages, the best of the devices, bytes/s."""
    return max((_rate(calls(lane).filter(LARGE)) for lane in e.lanes), default=0.0)


def _rate(own: pl.DataFrame) -> float:
    known = own.drop_nulls(["transfer_ns", "on_bus"])
    return float(known["on_bus"].sum()) * 1e9 / max(float(known["transfer_ns"].sum()), 1.0)


def small(e: Evidence) -> list[pl.DataFrame]:
    """Of each lane the small messages that could be joined: not those between stages of a pipeline, each of which takes
    the other's result."""
    apart = SENT if is_pipeline(e) else pl.lit(value=False)
    return [calls(lane).filter(~LARGE, ~apart) for lane in e.lanes]


def merged(e: Evidence) -> Change:
    """Small messages of kinds of which a step has several, as one in each step."""
    rate = REACHABLE_LINK.value * bandwidth_between_ranks(e)[0]
    return e.scaled(_merged(lane, own, rate) for lane, own in zip(e.lanes, small(e), strict=True))


def _merged(lane: Lane, small: pl.DataFrame, rate: float) -> pl.DataFrame:
    """`rate`: bus bandwidth that the link lets large messages reach, bytes/s."""
    steps, took = lane.steps.height, pl.col("transfer_ns")
    merged = steps * took.min() + pl.col("on_bus").sum() * 1e9 / rate
    shortened = small.with_columns(
        factor=(merged / took.sum()).over("collective").fill_nan(1.0).fill_null(1.0).clip(0.0, 1.0),
        kept=steps / pl.len().over("collective"),
    )
    many = shortened.filter(pl.col("kept") < 1)
    return pl.concat([many.select(*PLACE, "factor", "kept"), _between(lane, many), hooks.with_messages(lane, many)])


def _between(lane: Lane, messages: pl.DataFrame) -> pl.DataFrame:
    """What one thread launches between two messages where that is a loop over tensors: it would do for all at once what
    it does for each."""
    kernels = lane.own["kernels"].filter(pl.col("launch_ns").is_not_null()).sort("thread", "launch_ns")
    marked = kernels.join(messages.select(*PLACE, "kept"), on=PLACE, how="left", maintain_order="left")
    is_message, run = pl.col("kept").is_not_null(), ("thread", "since")
    runs = marked.with_columns(since=is_message.cum_sum().over("thread")).with_columns(
        count=pl.len().over(run), each=pl.col("kept").first().over(run)
    )
    looped = runs.filter(~is_message, pl.col("count") <= FEW + 1, pl.col("each").is_not_null())
    return looped.select(*PLACE, factor=pl.lit(1.0), kept="each")


def on_fast_link(e: Evidence) -> Change:
    """Large collectives on a link as fast as it could be, and kernels beside messages, held up for less long."""
    shares = _link_shares(e)
    faster = [
        calls(lane).filter(LARGE).select(*PLACE, factor=pl.lit(share), kept=pl.lit(1.0))
        for lane, share in zip(e.lanes, shares, strict=True)
    ]
    if min(shares, default=1.0) < 1:
        freed = (
            own.select(*PLACE, factor=_left(share), kept="kept")
            for own, share in zip(slowdowns(e.lanes), shares, strict=True)
        )
        faster = [pl.concat(both) for both in zip(faster, freed, strict=True)]
    return e.scaled(faster)


def beside_none(e: Evidence) -> Change:
    """Kernels as fast as where no message runs beside them, on top of `on_fast_link`."""
    return e.scaled(
        own.with_columns(factor=pl.col("factor") / _left(share))
        for own, share in zip(slowdowns(e.lanes), _link_shares(e), strict=True)
    )


def _link_shares(e: Evidence) -> list[float]:
    """Of each lane, the share of their time that large messages would take on a link as fast as it could be: 1 where
    they are fast enough, or there are none."""
    reachable = REACHABLE_LINK.value * bandwidth_between_ranks(e)[0]
    rates = (_rate(calls(lane).filter(LARGE)) for lane in e.lanes)
    return [rate / reachable if 0 < rate < 0.5 * reachable else 1.0 for rate in rates]


def _left(share: float) -> pl.Expr:
    """Of the time of a kernel that is held up while messages run, where these take so much of their time."""
    return 1 - (1 - pl.col("factor")) * (1 - share)


def is_pipeline(e: Evidence) -> bool:
    """Whether ranks are stages of a pipeline: by the settings; without, where some send and receive at least half as
    often again as others, as stages between two others do, or where in sends and receives each waits for others in
    TURNS of the time or more."""
    if (strategy := e.setting("strategy")) is not None:
        return bool(strategy == "pp")
    own = [calls(lane).filter(SENT) for lane in e.lanes]
    sent = [rows.height / lane.steps.height for rows, lane in zip(own, e.lanes, strict=True)]
    waits = [rows["wait_ns"].sum() / lane.periods.sum() for rows, lane in zip(own, e.lanes, strict=True)]
    return len(sent) > 1 and min(sent) > 0 and (max(sent) >= 1.5 * min(sent) or min(waits) >= TURNS)


def hands_on(e: Evidence) -> bool:
    """Whether ranks only send and receive, as where they share the work on one batch: what one of them does less,
    another does more. Ranks with a batch each sum up gradients."""
    own = [calls(lane)["collective"] for lane in e.lanes]
    return bool(own) and all(len(kinds) and (kinds == "send_recv").all() for kinds in own)


def without_waits(lanes: Sequence[Lane]) -> list[pl.DataFrame]:
    """Of each lane of a pipeline, sends and receives that take as long as their transfer: for `Evidence.scaled`. Where
    the other side is not known, that is the shortest of any lane with as many bytes, or of all where sizes are not
    known either: a pipeline's messages are alike. What a slower link takes longer then counts as waiting."""
    took = (pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64)
    found = [
        calls(lane).filter(SENT, pl.col("transfer_ns").is_null()).select(*PLACE, "bytes", took=took, lane=pl.lit(place))
        for place, lane in enumerate(lanes)
    ]
    left = (pl.col("took").min().over("bytes") / pl.col("took")).fill_nan(1.0)
    rows = pl.concat(found).with_columns(factor=left, kept=pl.lit(1.0))
    return [rows.filter(pl.col("lane") == place) for place in range(len(lanes))]


def without_transfer(lanes: Sequence[Lane]) -> list[pl.DataFrame]:
    """Of each lane of a pipeline, collectives that only wait for other ranks: for `Evidence.scaled`."""
    waiting = (rows.with_columns(factor=1 - pl.col("factor")) for rows in without_waits(lanes))
    sent = (lane.own["kernels"].filter(pl.col("category").cast(pl.String) == "communication") for lane in lanes)
    columns = (*PLACE, "factor", "kept")
    silent = (own.select(*PLACE, factor=pl.lit(0.0), kept=pl.lit(0.0)) for own in sent)
    return [pl.concat([waits.select(columns), gone]) for waits, gone in zip(waiting, silent, strict=True)]
