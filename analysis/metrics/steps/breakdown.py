"""Where a step's time goes: the table BREAKDOWN of one trace.

Time that several parts share goes to the first of `tables.PARTS`, and the parts add up to the step's window exactly.
On a GPU, compute are the kernels that are not NCCL's, communication those of NCCL, copies the copies and memsets;
data_wait is where the GPU does none of these while the step loop stands in its `data` range.

On a CPU, compute are PyTorch's `aten::` operators and communication those of the process group. There `data` ranges
come before compute: the operators inside them make the batch, and waiting for that is what data_wait is to tell.
"""

from __future__ import annotations

import polars as pl

from analysis.metrics import intervals
from analysis.metrics.steps import trace
from analysis.tables import points

_CPU_ORDER = ("data_wait", "compute", "communication", "copies")


def rows(events: trace.Events) -> pl.DataFrame:
    """Duration of each part of each step: step, part, duration_ns."""
    lanes = trace.lanes(events)
    sets = {
        "compute": trace.spans(lanes["compute"]),
        "communication": trace.spans(lanes["communication"]),
        "copies": trace.spans(lanes["copy"]),
        "data_wait": trace.spans(trace.ranges(events, ("data",))),
    }
    order = points.PARTS[:-1] if trace.on_gpu(events) else _CPU_ORDER
    out: list[tuple[int, str, int]] = []
    for step, start, end in trace.windows(events).iter_rows():
        lengths = dict(zip((*order, "idle"), intervals.share(start, end, [sets[p] for p in order]), strict=True))
        out += [(step, part, lengths[part]) for part in points.PARTS]
    kinds = {"step": pl.Int64, "part": pl.String, "duration_ns": pl.Int64}
    return pl.DataFrame(out, schema=kinds, orient="row")
