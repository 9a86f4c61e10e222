"""Where a trace's GPU time goes by the definitions of Holistic Trace Analysis (HTA), so that the two can be compared.

One trace is one rank. T is the span from the start of the first to the end of the last event on the GPU: kernels,
copies and memsets. Over all its streams, and with streams' overlapping events counted once:

- idle = T - union(all events on the GPU);
- compute = union(compute kernels);
- non_compute = T - idle - compute: communication and copies while nothing computes. What is hidden under compute is
  compute.

A kernel is told by its name: of communication where it begins with `nccl` and has `Kernel` in it; of compute where it
is none of these and its name has no `Memcpy` or `Sync` and does not begin with `Memset`. The rest (such as a kernel
`MemcpyKernel`) is neither.

Where the numbers of HTA 0.5.0 differ:

- It moves each start up and each end down to whole us, so that a kernel shorter than 1 us may get a negative length. A
  trace of short kernels loses a third of its compute time thus, or fails an assertion. Here nothing is rounded, and the
  numbers are HTA's with HTA_DISABLE_NS_ROUNDING=1, whose float64 us are good to about 1 ns.
- Of a trace with several annotations `ProfilerStep#` it leaves out what was launched after the last of them began (on
  the GPU, where the trace has it there too) and what no call in the trace launched. Here all is counted.
- Any event that tells a stream is on the GPU to it: synchronisation and the odd CPU operator too.
"""

from __future__ import annotations

import polars as pl

from analysis.metrics import intervals
from analysis.metrics.steps.trace import SPAN, Events, named, spans

_COMMUNICATION = r"^nccl.*Kernel"
_NO_COMPUTE = r"^nccl.*Kernel|^Memset|Memcpy|Sync"
_ON_GPU = ("kernels", "copies", "memsets")


def temporal_breakdown(events: Events) -> dict[str, int]:
    """Durations, ns: span, idle, compute and non_compute, where the last three add up to the first. All 0 where nothing
    ran on a GPU."""
    everything = intervals.merge(*(spans(events[kind]) for kind in _ON_GPU))
    span = int(everything[-1, 1] - everything[0, 0]) if len(everything) else 0
    idle = span - intervals.total(everything)
    compute = intervals.total(_compute(events))
    return {"span": span, "idle": idle, "compute": compute, "non_compute": span - idle - compute}


def table(events: Events) -> pl.DataFrame:
    """One row: span_ns, idle_ns, compute_ns, non_compute_ns, overlap_percent; none where nothing ran on a GPU."""
    found = temporal_breakdown(events)
    row = {f"{name}_ns": length for name, length in found.items()} | {"overlap_percent": overlap_percent(events)}
    frame = pl.DataFrame([row], schema_overrides={"overlap_percent": pl.Float64})
    return frame if found["span"] else frame.clear()


def overlap_percent(events: Events) -> float | None:
    """Time in which communication and compute both run, % of that in which communication runs; null without any."""
    communication = spans(named(events["kernels"].select(SPAN), _COMMUNICATION))
    if not len(communication):
        return None
    both = intervals.intersect(communication, _compute(events))
    return 100 * intervals.total(both) / intervals.total(communication)


def _compute(events: Events) -> intervals.Intervals:
    return spans(named(events["kernels"].select(SPAN), _NO_COMPUTE, others=True))
