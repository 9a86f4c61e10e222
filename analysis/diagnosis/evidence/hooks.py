"""FSDP2's hooks, which are ranges in a trace of the PyTorch profiler
(torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py)."""

from __future__ import annotations

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.evidence.lane import Lane
from nightsweep.analysis.diagnosis.replay.measured import PLACE
from nightsweep.analysis.metrics.intervals import length_before, union

FOR_MESSAGES = (
    r"^FSDP::(pre_forward|pre_backward|backward_prefetch|all_gather|all_gather_copy_out|post_forward"
    r"|post_backward_reshard|post_backward_reduce)\b"
)
"""Those that gather, free and send; others cast what comes in, or copy it to the device."""
LAUNCH = ("thread", "launch_ns")


def _named(lane: Lane, pattern: str) -> pl.DataFrame:
    return lane.events["nvtx"].filter(pl.col("name").cast(pl.String).str.contains(pattern))


def launches_for_messages(lane: Lane) -> pl.DataFrame:
    """Kernels, copies and memsets that hooks launched: device, stream, start_ns, thread, launch_ns."""
    work = pl.concat([lane.own[kind].select(*PLACE, *LAUNCH) for kind in ("kernels", "copies", "memsets")])
    work = work.filter(pl.col("launch_ns").is_not_null())
    inside, begun = np.zeros(work.height, bool), work["launch_ns"].to_numpy()
    for (thread,), own in _named(lane, FOR_MESSAGES).group_by("thread"):
        covered = union(own.select("start_ns", "end_ns").to_numpy())
        begins_in_one = length_before(covered, begun + 1) > length_before(covered, begun)
        inside |= begins_in_one & (work["thread"] == thread).fill_null(False).to_numpy()
    return work.filter(pl.Series(inside))


def with_messages(lane: Lane, messages: pl.DataFrame) -> pl.DataFrame:
    """What hooks launch, for `Evidence.scaled`: as much of it as is kept of the message before on its thread, where
    that is one of these. `messages`: device, stream, start_ns, kept."""
    sent = lane.collectives.join(lane.own["kernels"].select(*PLACE, *LAUNCH), on=PLACE, how="left")
    sent = sent.join(messages.select(*PLACE, "kept"), on=PLACE, how="left").drop_nulls(list(LAUNCH)).sort("launch_ns")
    own = launches_for_messages(lane).join(sent.select(*PLACE), on=PLACE, how="anti").sort("launch_ns")
    last = own.join_asof(sent.select(*LAUNCH, "kept"), on="launch_ns", by="thread", check_sortedness=False)
    return last.drop_nulls("kept").select(*PLACE, factor=pl.lit(1.0), kept="kept")


def sends_in_each_pass(lane: Lane) -> bool:
    """Whether each pass of a unit reduces its gradients or gathers its weights: where a script leaves the first to the
    last pass (set_requires_gradient_sync), the others only add them up, and where it keeps the weights between passes
    (set_reshard_after_backward), only the first gathers them."""
    added = _named(lane, r"^FSDP::post_backward_accumulate\b").height
    sent = max(_named(lane, rf"^FSDP::{what}\b").height for what in ("post_backward_reduce", "all_gather"))
    return 0 < added <= sent
