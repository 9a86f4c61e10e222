"""What FSDP2 launches for its messages: its hooks are ranges in a trace of the PyTorch profiler
(torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py)."""

from __future__ import annotations

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.evidence.lane import Lane
from nightsweep.analysis.metrics.intervals import length_before, union

HOOK = "FSDP::"


def launched(lane: Lane) -> pl.DataFrame:
    """Kernels, copies and memsets that hooks launched: device, stream, start_ns, thread, launch_ns."""
    columns = ("device", "stream", "start_ns", "thread", "launch_ns")
    work = pl.concat([lane.own[kind].select(columns) for kind in ("kernels", "copies", "memsets")])
    work = work.filter(pl.col("launch_ns").is_not_null())
    hooks = lane.events["nvtx"].filter(pl.col("name").cast(pl.String).str.starts_with(HOOK))
    inside, begun = np.zeros(work.height, bool), work["launch_ns"].to_numpy()
    for (thread,), own in hooks.group_by("thread"):
        covered = union(own.select("start_ns", "end_ns").to_numpy())
        begins_in_one = length_before(covered, begun + 1) > length_before(covered, begun)
        inside |= begins_in_one & (work["thread"] == thread).fill_null(False).to_numpy()
    return work.filter(pl.Series(inside))
