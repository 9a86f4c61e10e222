"""A trace's GPU time by the definitions of Holistic Trace Analysis (HTA), so that the two can be compared.

One trace is one rank. T is the span from the start of the first to the end of the last event on the GPU: kernels,
copies and memsets. Over all its streams, and with streams' overlapping events counted once:

- idle = T - union(all events on the GPU);
- compute = union(compute kernels);
- non_compute = T - idle - compute: communication and copies while nothing computes. What is hidden under compute is
  compute.

Kernels are classified by name: communication if it begins with `nccl` and has `Kernel` in it; compute if it does not,
and has no `Memcpy` or `Sync` and does not begin with `Memset`. Others (such as a kernel `MemcpyKernel`) are neither.

The numbers of HTA 0.5.0 differ in this:

- It rounds each start up and each end down to whole us, so that a kernel shorter than 1 us may get a negative length. A
  trace of short kernels loses a third of its compute time to this, or fails an assertion. Here nothing is rounded, and
  the numbers are HTA's with HTA_DISABLE_NS_ROUNDING=1, whose float64 us are exact to about 1 ns.
- Of a trace with several annotations `ProfilerStep#` it leaves out what was launched after the last of them began (on
  the GPU, where the trace has it there too) and what no call in the trace launched. Here all is counted.
- It takes each event that has a stream for one on the GPU: synchronisation and the odd CPU operator too.
"""

from __future__ import annotations

import polars as pl

from nightsweep.analysis.metrics import intervals
from nightsweep.analysis.metrics.steps.selection import SPAN, Events, covered_time, filter_by_name

_COMMUNICATION = r"^nccl.*Kernel"
_NO_COMPUTE = r"^nccl.*Kernel|^Memset|Memcpy|Sync"
_ON_GPU = ("kernels", "copies", "memsets")


def temporal_breakdown(events: Events) -> dict[str, int]:
    """Durations, ns: span, idle, compute and non_compute; the last three add up to the first.

    All are 0 where nothing ran on a GPU.
    """
    everything = intervals.merge(*(covered_time(events[kind]) for kind in _ON_GPU))
    span = int(everything[-1, 1] - everything[0, 0]) if len(everything) else 0
    idle = span - intervals.total(everything)
    compute = intervals.total(_compute(events))
    return {"span": span, "idle": idle, "compute": compute, "non_compute": span - idle - compute}


def table(events: Events) -> pl.DataFrame:
    """The table `temporal` in one row; without rows where nothing ran on a GPU."""
    found = temporal_breakdown(events)
    row = {f"{name}_ns": length for name, length in found.items()} | {"overlap_percent": overlap_percent(events)}
    frame = pl.DataFrame([row], schema_overrides={"overlap_percent": pl.Float64})
    return frame if found["span"] else frame.clear()


def overlap_percent(events: Events) -> float | None:
    """Time in which communication and compute both run, % of that in which communication runs; None without any."""
    communication = covered_time(filter_by_name(events["kernels"].select(SPAN), _COMMUNICATION))
    if not len(communication):
        return None
    both = intervals.intersect(communication, _compute(events))
    return 100 * intervals.total(both) / intervals.total(communication)


def _compute(events: Events) -> intervals.Intervals:
    return covered_time(filter_by_name(events["kernels"].select(SPAN), _NO_COMPUTE, others=True))
