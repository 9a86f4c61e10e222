"""The tables of `nightsweep ingest`: events with their launches, ranges and steps, and what is computed from them.

One Parquet file a table. Each row has the `rank` and, where sums could mix files, the `report` that it comes from.
"""

from __future__ import annotations

import polars as pl

from nightsweep.analysis.tables.column import Column
from nightsweep.analysis.tables.events import DEVICES, EVENTS
from nightsweep.analysis.tables.part_names import HIDDEN, PARTS

_STEP = {"step": Column(pl.Int32(), "Step in whose host range it was called or launched; null outside of steps.")}
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
    "count": Column(pl.Int64(), "Number."),
    "total": Column(pl.Int64(), "Sum."),
    "mean": Column(pl.Float64(), "Mean."),
    "median": Column(pl.Float64(), "Median."),
    "min": Column(pl.Int64(), "Smallest."),
    "max": Column(pl.Int64(), "Largest."),
    "std": Column(pl.Float64(), "Standard deviation (n - 1); 0 for a single one."),
}
_NAME = {**_REPORT, "name": Column(pl.String(), "Name.")}
_RANGE = {
    **_NAME,
    "domain": Column(pl.String(), "NVTX domain; null for the default one."),
    "style": Column(pl.String(), "PushPop, StartEnd or Annotation."),
}
_ESTIMATES = {
    "category": Column(pl.String(), "Kind of operation, by the kernel's name."),
    "precision": Column(pl.String(), "Number format, by the kernel's name; null where the name has none."),
    "tensor_cores": Column(
        pl.Boolean(), "Whether it multiplies on tensor cores, by its name; null where the name does not say."
    ),
    "collective": Column(pl.String(), "Collective of a communication kernel."),
    "waves": Column(pl.Float64(), "Blocks over the number that can be resident at once."),
    "est_sm_efficiency": Column(pl.Float64(), "min(blocks / SMs, 1)."),
    "theoretical_occupancy": Column(pl.Float64(), "Resident warps over their limit, given enough blocks."),
    "est_achieved_occupancy": Column(pl.Float64(), "The same with the kernel's number of blocks."),
}

RANK_COLLECTIVES: dict[str, Column] = {
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
    "bytes": Column(pl.Int64, "Message size as NCCL reports it: a rank's share of a gather, scatter or all-to-all."),
    "communicator": Column(pl.String, "The communicator, the same on all its ranks."),
    "ranks": Column(pl.Int64, "Ranks of the communicator."),
}
"""One row an NCCL kernel of one rank."""

COLLECTIVES: dict[str, Column] = {
    **RANK_COLLECTIVES,
    "lane": Column(
        pl.String, "Its communicator, or its stream where that is unknown: collectives of a lane are in order."
    ),
    "sequence": Column(pl.Int64, "Its number among those of its kind on its lane, the same on all ranks."),
    "matched_ranks": Column(pl.Int64, "Ranks on which it was found. The columns below are null where that is 1."),
    "first_start_ns": Column(pl.Int64, "Start on the earliest rank, ns."),
    "others_start_ns": Column(pl.Int64, "Start on the last rank but one, ns: from then on only the last is missing."),
    "others_end_ns": Column(
        pl.Int64, "Last end on the other ranks, ns: a broadcast's root need not wait for the last rank."
    ),
    "skew_ns": Column(pl.Int64, "Start on the last rank less that on the first, ns."),
    "late_rank": Column(pl.Int64, "The rank that came last."),
    "transfer_ns": Column(
        pl.Int64, "Shortest duration over the ranks, ns: the time of the collective once all have come."
    ),
    "wait_ns": Column(pl.Int64, "This rank's duration less transfer_ns, ns: waiting for others."),
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
    "allocator",  # likewise, in a call that allocates or frees memory
    "launch",  # likewise, in a call that launches work
    "call",  # likewise, in any other call of CUDA
    "range",  # in no such call: its innermost NVTX range
    "elsewhere",  # nor in any range: the innermost range of another thread of the process
    "nothing",  # nor was any other thread
    "queued",  # launched but not begun, with the GPU idle
    "unknown",  # the GPU was idle; the launch is not in the trace
    "unrecorded",  # before this rank's trace begins
)
STRAGGLERS: dict[str, Column] = {
    "rank": Column(pl.Int64, "Global rank."),
    "step": Column(pl.Int32, "Step in which it launched the collectives; null outside of steps."),
    "late_ns": Column(pl.Int64, "Time in the step in which it alone was missing, over all collectives, ns."),
    "instead": Column(pl.String, "One of " + ", ".join(CATEGORIES) + "."),
    "name": Column(pl.String, "Kernel, copy direction, call or range; null for none."),
    "duration_ns": Column(pl.Int64, "Time that it took of late_ns, ns; the rows of a step add up to late_ns exactly."),
}
"""One row an activity, call or range of a late rank in a step."""

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
"""One row a direction of copies and kind of host memory, of each device."""

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
        "depth": Column(pl.Int32(), "Number of ranges that it lies in; null for one that ends on another thread."),
        **_STEP,
    },
    "nvtx_gpu": {
        **EVENTS["nvtx"],
        **_PATH,
        "depth": Column(pl.Int32(), "Number of ranges that it lies in."),
        **_STEP,
        "gpu_start_ns": Column(pl.Int64(), "Start of the first activity launched in it."),
        "gpu_end_ns": Column(pl.Int64(), "End of the last activity launched in it."),
        "gpu_span_ns": Column(pl.Int64(), "Time between these, ns: its projection on the GPU."),
        "gpu_busy_ns": Column(pl.Int64(), "Time in which any of these activities ran, ns."),
        "launches": Column(pl.Int64(), "Calls in it that launched an activity."),
        "activities": Column(
            pl.Int64(), "Activities that they launched: several for a call that launches a CUDA graph."
        ),
    },
    "collectives": COLLECTIVES,
    "collective_sizes": {
        "collective": Column(pl.String(), "Kind of collective."),
        "size_bytes": Column(pl.Int64(), "The power of two at or below total_bytes; null where sizes are not known."),
        "count": Column(pl.Int64(), "Number of collectives that were matched over ranks."),
        "median_bus_bandwidth": Column(pl.Float64(), "Median over collectives, bytes/s."),
        "max_bus_bandwidth": Column(pl.Float64(), "Largest, bytes/s."),
        "transfer_ns": Column(pl.Int64(), "Sum of transfer times, ns."),
        "wait_share": Column(pl.Float64(), "Share of all ranks' time in them that was waiting."),
    },
    "waited_for": {
        **_RANK,
        "step": Column(pl.Int32(), "Step; null for the whole trace."),
        "late_ns": Column(
            pl.Int64(), "Time that the other ranks waited in collectives in which this one came last, ns."
        ),
        "collectives": Column(pl.Int64(), "Number of collectives in which it came last."),
    },
    "stragglers": STRAGGLERS,
    "file_clocks": {
        **_RANK,
        "events": Column(pl.Int64(), "Number of collectives that were compared."),
        "offset_ns": Column(
            pl.Int64(), "The file's clock less the first file's, ns; it was subtracted from all times of the file."
        ),
        "residual_ns": Column(pl.Int64(), "Median distance from offset_ns, ns: the remaining error."),
        "residual_max_ns": Column(pl.Int64(), "Largest distance from offset_ns, ns."),
    },
    **{name: EVENTS[name] for name in ("operators", "nccl_calls", "allocations", "counters")},
    "devices": DEVICES,
    "windows": {
        **_RANK,
        "step": Column(pl.Int32(), "Number of the step."),
        "device": Column(pl.Int32(), "CUDA device; null in a trace of a CPU."),
        "start_ns": Column(pl.Int64(), "Start of its window (see analysis/metrics/steps/detection.py)."),
        "end_ns": Column(pl.Int64(), "End of its window, which is the start of the next one."),
        "counted": Column(
            pl.Boolean(),
            "Whether the step counts: of several the first does not, nor a last one whose work is cut off or whose end "
            "is not seen; of a file that is cut off or damaged none does.",
        ),
        "host_start_ns": Column(pl.Int64(), "Start of its range on the host."),
        "host_end_ns": Column(pl.Int64(), "End of its range on the host."),
        "source": Column(pl.String(), "nvtx, launches (their period), or none: the whole trace as one step 0."),
    },
    "parts": {
        **_RANK,
        "device": Column(pl.Int32(), "CUDA device; null in a trace of a CPU."),
        "part": Column(pl.String(), f"One of {', '.join(PARTS)}, which are disjoint; or {HIDDEN}."),
        "start_ns": Column(pl.Int64(), "Start of an interval in the counted steps in which the device did this."),
        "end_ns": Column(pl.Int64(), "Its end."),
    },
    "step_parts": {
        **_RANK,
        "step": Column(pl.Int32(), "Number of a counted step."),
        "device": Column(pl.Int32(), "CUDA device; null in a trace of a CPU."),
        "part": Column(pl.String(), f"One of the parts; or {HIDDEN}, which is not in the sum."),
        "duration_ns": Column(pl.Int64(), "Its time in the step's window; the parts add up to the window."),
    },
    "bandwidth": BANDWIDTH,
    "temporal": {
        **_RANK,
        "span_ns": Column(pl.Int64(), "From the first activity on the GPU to the last, as HTA counts it."),
        "idle_ns": Column(pl.Int64(), "Time of it in which nothing ran."),
        "compute_ns": Column(
            pl.Int64(), "Time of it in which compute kernels ran (see analysis/metrics/steps/temporal.py)."
        ),
        "non_compute_ns": Column(pl.Int64(), "The rest: communication and copies while nothing computed."),
        "overlap_percent": Column(
            pl.Float64(), "Share of the time of communication in which compute kernels ran too, %."
        ),
    },
    **dict.fromkeys(("kernel_sum", "api_sum", "copy_time_sum", "copy_size_sum"), _NAME | _SUM),
    **dict.fromkeys(("nvtx_sum", "nvtx_gpu_sum"), _RANGE | _SUM),
    "paper_calls": {
        **_REPORT,
        "figure": Column(pl.String(), "Call or activity, as arXiv 2505.22905 names it."),
        "source": Column(pl.String(), "Table that it comes from."),
        "count": Column(pl.Int64(), "Number."),
        "total": Column(pl.Int64(), "Time, ns."),
        "mean": Column(pl.Float64(), "Mean time, ns."),
    },
    "reports": {
        **_REPORT,
        "format": Column(pl.String(), "nsys or kineto."),
        "schema": Column(pl.String(), "Version of the export's schema."),
        "tool": Column(pl.String(), "Version of the tracer."),
        "partial": Column(pl.Boolean(), "Whether something of it could not be read."),
        "problems": Column(pl.List(pl.String), "What could not be read, a line each."),
        "absent": Column(
            pl.List(pl.String), "Kinds of events that were not recorded: whether there were any is not known."
        ),
    },
}
