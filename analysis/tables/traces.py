"""The tables of `nightsweep ingest`: events with what was found of them, and what was computed from them.

One Parquet file a table. Every row bears the `rank` and, where sums could mix files, the `report` it comes from.
"""

from __future__ import annotations

import polars as pl

from analysis.tables.column import Column
from analysis.tables.events import DEVICES, EVENTS
from analysis.tables.parts import HIDDEN, PARTS

_STEP = {"step": Column(pl.Int32(), "Step in whose host range it was called or launched; null outside steps.")}
_PATH = {"nvtx_path": Column(pl.String(), "Ranges open at the call, outermost first, between slashes.")}
_LAUNCH = {
    "thread": Column(pl.Int32(), "Thread that launched it."),
    "launch_ns": Column(pl.Int64(), "Start of the launching call."),
    "launch_end_ns": Column(pl.Int64(), "Its end."),
    **_PATH,
    **_STEP,
}
_RANK = {"rank": Column(pl.Int64(), "Global rank, or the number of the process where the trace does not say.")}
_REPORT = {**_RANK, "report": Column(pl.String(), "Name of the file.")}
_SUM = {
    "count": Column(pl.Int64(), "How many."),
    "total": Column(pl.Int64(), "Sum."),
    "mean": Column(pl.Float64(), "Mean."),
    "median": Column(pl.Float64(), "Median."),
    "min": Column(pl.Int64(), "Least."),
    "max": Column(pl.Int64(), "Largest."),
    "std": Column(pl.Float64(), "Standard deviation (n - 1); 0 of one."),
}
_NAME = {**_REPORT, "name": Column(pl.String(), "Name.")}
_RANGE = {
    **_NAME,
    "domain": Column(pl.String(), "NVTX domain; null for the default one."),
    "style": Column(pl.String(), "PushPop, StartEnd or Annotation."),
}
_ESTIMATES = {
    "category": Column(pl.String(), "Kind of operation, by the kernel's name."),
    "precision": Column(pl.String(), "Number format, by the kernel's name; null where that does not say."),
    "tensor_cores": Column(pl.Boolean(), "Whether it multiplies on tensor cores, by its name; null likewise."),
    "collective": Column(pl.String(), "Collective of a communication kernel."),
    "waves": Column(pl.Float64(), "Blocks over those that are resident at once."),
    "est_sm_efficiency": Column(pl.Float64(), "min(blocks / SMs, 1)."),
    "theoretical_occupancy": Column(pl.Float64(), "Resident warps over the limit, were there blocks enough."),
    "est_achieved_occupancy": Column(pl.Float64(), "The same with the blocks that there are."),
}

OF_RANK: dict[str, Column] = {
    "rank": Column(pl.Int64, "Global rank; null where the trace does not say."),
    "device": Column(pl.Int32, "CUDA device ordinal."),
    "stream": Column(pl.Int64, "CUDA stream."),
    "process": Column(pl.Int32, "Process id."),
    "thread": Column(pl.Int32, "Thread that launched it; null where the launch is not in the trace."),
    "step": Column(pl.Int32, "Step in whose host range it was launched; null outside of steps."),
    "collective": Column(
        pl.String, "all_reduce, all_gather, reduce_scatter, broadcast, reduce, send_recv, all_to_all; null: unknown."
    ),
    "launch_ns": Column(pl.Int64, "Start of the launching call, ns."),
    "start_ns": Column(pl.Int64, "Start of the kernel, ns."),
    "end_ns": Column(pl.Int64, "Its end, ns."),
    "calls": Column(pl.Int64, "NCCL calls that the kernel carries out; null where not known."),
    "bytes": Column(pl.Int64, "Message size as NCCL tells it: a rank's share of a gather, scatter or all-to-all."),
    "communicator": Column(pl.String, "The communicator, the same on all its ranks."),
    "ranks": Column(pl.Int64, "Ranks of the communicator."),
}
"""One row an NCCL kernel of one rank."""

ACROSS: dict[str, Column] = {
    **OF_RANK,
    "lane": Column(pl.String, "What orders it: its communicator, or its stream where that is unknown."),
    "sequence": Column(pl.Int64, "Its number among those of its kind on its lane, the same on all ranks."),
    "matched_ranks": Column(pl.Int64, "Ranks on which it was found. The rest is null where that is 1."),
    "first_start_ns": Column(pl.Int64, "Start on the first rank that came, ns."),
    "others_start_ns": Column(pl.Int64, "Start on the last but one: from then on only the last was waited for, ns."),
    "others_end_ns": Column(pl.Int64, "Last end on the others: a broadcast's root need not wait for the last to come."),
    "skew_ns": Column(pl.Int64, "Start on the last rank less that on the first, ns."),
    "late_rank": Column(pl.Int64, "The rank that came last."),
    "transfer_ns": Column(pl.Int64, "Shortest duration over the ranks: what the collective takes when all are there."),
    "wait_ns": Column(pl.Int64, "This rank's duration less transfer_ns: waiting for others, ns."),
    "total_bytes": Column(pl.Int64, "Size as nccl-tests counts it: a gather, scatter or all-to-all of all ranks."),
    "algorithm_bandwidth": Column(pl.Float64, "total_bytes / transfer, bytes/s."),
    "bus_bandwidth": Column(pl.Float64, "algorithm_bandwidth times nccl-tests' factor, bytes/s."),
}
"""One row an NCCL kernel of any rank."""

CATEGORIES = (
    "compute",  # a compute kernel ran
    "copy",  # none did, and a copy or memset ran
    "communication",  # neither did, and another collective ran
    "sync",  # the GPU was idle, and the thread waited in a synchronizing call
    "allocator",  # likewise, in a call that takes or gives back memory
    "launch",  # likewise, in a call that launches work
    "call",  # likewise, in any other call of CUDA
    "range",  # in no such call: its innermost NVTX range
    "elsewhere",  # nor in any range: the innermost range of another thread of the process
    "nothing",  # nor was any other thread
    "queued",  # launched, and not begun: the GPU idle
    "unknown",  # the GPU idle; the trace does not hold the launch
    "unrecorded",  # before this rank's trace begins
)
INSTEAD: dict[str, Column] = {
    "rank": Column(pl.Int64, "Global rank."),
    "step": Column(pl.Int32, "Step in which it launched the collectives; null outside of steps."),
    "late_ns": Column(pl.Int64, "Time in the step in which it alone was missing, over all collectives, ns."),
    "instead": Column(pl.String, "One of " + ", ".join(CATEGORIES) + "."),
    "name": Column(pl.String, "Kernel, copy direction, call or range; null for none."),
    "duration_ns": Column(pl.Int64, "Time of that in late_ns, ns; the rows of a step add up to late_ns exactly."),
}
"""One row a thing that a late rank did in a step."""

BANDWIDTH: dict[str, Column] = {
    "rank": Column(pl.Int64, "Global rank; null where the trace does not say."),
    "device": Column(pl.Int32, "CUDA device ordinal."),
    "direction": Column(pl.String, "HtoD, DtoH or DtoD."),
    "memory": Column(pl.String, "Kind of the host's memory (pageable, pinned, ...); null for DtoD."),
    "bytes": Column(pl.Int64, "Bytes read and written on the device: of DtoD each byte counts twice."),
    "busy_ns": Column(pl.Int64, "Time in which at least one of these copies ran, ns."),
    "bytes_per_s": Column(pl.Float64, "bytes over busy_ns."),
    "percent": Column(pl.Float64, "bytes_per_s over the peak bandwidth of the device's memory, %; DtoD only."),
    "reason": Column(pl.String, "Why percent is null."),
}
"""The table that `bandwidth` gives."""

TRACE_TABLES: dict[str, dict[str, Column]] = {
    "kernels": {**EVENTS["kernels"], **_LAUNCH, **_ESTIMATES},
    "graphs": {**EVENTS["graphs"], **_LAUNCH},
    "copies": {**EVENTS["copies"], **_LAUNCH},
    "memsets": {**EVENTS["memsets"], **_LAUNCH},
    "runtime": {**EVENTS["runtime"], **_PATH, **_STEP},
    "syncs": EVENTS["syncs"],
    "nvtx": {
        **EVENTS["nvtx"],
        **_PATH,
        "depth": Column(pl.Int32(), "How many ranges it lies in; null for one that ends on another thread."),
        **_STEP,
    },
    "nvtx_gpu": {
        **{name: EVENTS["nvtx"][name] for name in ("rank", "start_ns", "end_ns", "name", "process", "thread")},
        "domain": EVENTS["nvtx"]["domain"],
        "style": EVENTS["nvtx"]["style"],
        **_PATH,
        "depth": Column(pl.Int32(), "How many ranges it lies in."),
        **_STEP,
        "gpu_start_ns": Column(pl.Int64(), "Start of the first activity launched in it."),
        "gpu_end_ns": Column(pl.Int64(), "End of the last one."),
        "gpu_span_ns": Column(pl.Int64(), "Between these: its projection on the GPU."),
        "gpu_busy_ns": Column(pl.Int64(), "Union of these activities."),
        "launches": Column(pl.Int64(), "Calls in it that launched something."),
        "activities": Column(pl.Int64(), "What they launched: more where a call launches a CUDA graph."),
    },
    "collectives": ACROSS,
    "collective_sizes": {
        "collective": Column(pl.String(), "Kind of collective."),
        "size_bytes": Column(pl.Int64(), "The power of two at or below total_bytes; null where sizes are not known."),
        "count": Column(pl.Int64(), "Collectives that were matched over ranks."),
        "median_bus_bandwidth": Column(pl.Float64(), "Median over collectives, bytes/s."),
        "max_bus_bandwidth": Column(pl.Float64(), "Largest, bytes/s."),
        "transfer_ns": Column(pl.Int64(), "Sum of transfer times, ns."),
        "wait_share": Column(pl.Float64(), "Of all ranks' time in them, the share that was waiting."),
    },
    "waited_for": {
        **_RANK,
        "step": Column(pl.Int32(), "Step; null for the whole trace."),
        "late_ns": Column(pl.Int64(), "How long the other ranks waited in collectives in which this one came last."),
        "collectives": Column(pl.Int64(), "In how many it was last."),
    },
    "stragglers": INSTEAD,
    "file_clocks": {
        **_RANK,
        "events": Column(pl.Int64(), "Collectives that were compared."),
        "offset_ns": Column(pl.Int64(), "What was taken out of all times of the file: its clock less the first one's."),
        "residual_ns": Column(pl.Int64(), "Median distance that is left."),
        "residual_max_ns": Column(pl.Int64(), "Largest distance that is left."),
    },
    "operators": EVENTS["operators"],
    "nccl_calls": EVENTS["nccl_calls"],
    "allocations": EVENTS["allocations"],
    "counters": EVENTS["counters"],
    "devices": DEVICES,
    "windows": {
        **_RANK,
        "step": Column(pl.Int32(), "Number of the step."),
        "device": Column(pl.Int32(), "CUDA device; null in a trace of a CPU."),
        "start_ns": Column(pl.Int64(), "Start of its window (docs: analysis/metrics/steps/detection.py)."),
        "end_ns": Column(pl.Int64(), "End of its window: the start of the next one's."),
        "counted": Column(pl.Boolean(), "Whether it counts: of several steps the first does not."),
        "host_start_ns": Column(pl.Int64(), "Start of its range on the host."),
        "host_end_ns": Column(pl.Int64(), "End of that."),
        "source": Column(pl.String(), "nvtx, launches (their period), or none: the whole trace as one step 0."),
    },
    "parts": {
        **_RANK,
        "device": Column(pl.Int32(), "CUDA device; null in a trace of a CPU."),
        "part": Column(pl.String(), f"One of {', '.join(PARTS)}, apart from each other; or {HIDDEN}."),
        "start_ns": Column(pl.Int64(), "Start of a stretch of the steps that count, in which the device did this."),
        "end_ns": Column(pl.Int64(), "Its end."),
    },
    "step_parts": {
        **_RANK,
        "step": Column(pl.Int32(), "Number of a step that counts."),
        "device": Column(pl.Int32(), "CUDA device; null in a trace of a CPU."),
        "part": Column(pl.String(), f"One of the parts; or {HIDDEN}, which is no part of the sum."),
        "duration_ns": Column(pl.Int64(), "Its time in the step's window; the parts add up to the window."),
    },
    "bandwidth": BANDWIDTH,
    "temporal": {
        **_RANK,
        "span_ns": Column(pl.Int64(), "From the first activity on the GPU to the last, as HTA counts it."),
        "idle_ns": Column(pl.Int64(), "Of that, nothing ran."),
        "compute_ns": Column(pl.Int64(), "Of that, compute kernels ran (docs: analysis/metrics/steps/temporal.py)."),
        "non_compute_ns": Column(pl.Int64(), "The rest of it: communication and copies while nothing computed."),
        "overlap_percent": Column(pl.Float64(), "Of the time of communication, the share beside compute, %."),
    },
    "kernel_sum": {**_NAME, **_SUM},
    "api_sum": {**_NAME, **_SUM},
    "copy_time_sum": {**_NAME, **_SUM},
    "copy_size_sum": {**_NAME, **_SUM},
    "nvtx_sum": {**_RANGE, **_SUM},
    "nvtx_gpu_sum": {**_RANGE, **_SUM},
    "paper_calls": {
        **_REPORT,
        "figure": Column(pl.String(), "Call or activity, as arXiv 2505.22905 names it."),
        "source": Column(pl.String(), "Table that it is from."),
        "count": Column(pl.Int64(), "How many."),
        "total": Column(pl.Int64(), "Time, ns."),
        "mean": Column(pl.Float64(), "Mean time, ns."),
    },
    "reports": {
        **_REPORT,
        "format": Column(pl.String(), "nsys or kineto."),
        "schema": Column(pl.String(), "Version of the export's schema."),
        "tool": Column(pl.String(), "Version of the tracer."),
        "partial": Column(pl.Boolean(), "Whether something of it could not be read."),
        "problems": Column(pl.List(pl.String), "What could not."),
        "absent": Column(pl.List(pl.String), "Kinds of events for which it has no table: not known if there were any."),
    },
}
