"""A trace as every reader returns it: one table a kind of event, whatever tool wrote it.

Times are ns, UTC where the trace records when its clock began, else on the trace's clock. A column that a trace lacks
is null. What analysis adds to events (launching call, ranges, step, class) is in analysis/tables/traces.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from nightsweep.analysis.tables.column import Column

_EVENT = {
    "rank": Column(pl.Int64, "Global rank; null where the trace does not say."),
    "start_ns": Column(pl.Int64, "Start, ns."),
    "end_ns": Column(pl.Int64, "End, ns."),
    "name": Column(pl.String, "Name."),
}
_ON_DEVICE = {
    "device": Column(pl.Int32, "CUDA device ordinal."),
    "stream": Column(pl.Int64, "CUDA stream."),
    "process": Column(pl.Int32, "Process id of the launching process."),
    "correlation": Column(pl.Int64, "Joins with the launching call, together with process."),
}
_ON_THREAD = {"process": Column(pl.Int32, "Process id."), "thread": Column(pl.Int32, "Thread id.")}
EVENTS: dict[str, dict[str, Column]] = {
    "kernels": {
        **_EVENT,
        **_ON_DEVICE,
        "blocks": Column(pl.Int64, "Thread blocks of the grid."),
        "threads": Column(pl.Int32, "Threads of a block."),
        "registers": Column(pl.Int32, "Registers of a thread."),
        "shared_bytes": Column(pl.Int32, "Shared memory of a block, static and dynamic, bytes."),
        "graph": Column(pl.Int64, "CUDA graph (or node of one) that it belongs to; null where it was launched alone."),
    },
    "graphs": {
        **_EVENT,
        **_ON_DEVICE,
        "graph": Column(pl.Int64, "CUDA graph, in a trace that holds graphs as a whole and not what ran in them."),
    },
    "copies": {
        **_EVENT,
        **_ON_DEVICE,
        "bytes": Column(pl.Int64, "Bytes copied."),
        "direction": Column(pl.String, "HtoD, DtoH, DtoD, PtoP or other."),
        "source": Column(pl.String, "Memory read: pageable, pinned, device, array, managed or unknown."),
        "target": Column(pl.String, "Memory written, likewise."),
    },
    "memsets": {**_EVENT, **_ON_DEVICE, "bytes": Column(pl.Int64, "Bytes set.")},
    "runtime": {**_EVENT, **_ON_THREAD, "correlation": Column(pl.Int64, "Joins with what the call launched.")},
    "syncs": {
        **_EVENT,
        "device": Column(pl.Int32, "CUDA device ordinal."),
        "stream": Column(pl.Int64, "CUDA stream; null for a whole device."),
        "process": Column(pl.Int32, "Process id."),
        "correlation": Column(pl.Int64, "Joins with the call that waits."),
    },
    "nvtx": {
        **_EVENT,
        "name": Column(pl.Categorical(), "Name; categorical, since there are millions of ranges and few names."),
        **_ON_THREAD,
        "domain": Column(pl.Categorical(), "NVTX domain; null for the default one."),
        "style": Column(
            pl.Categorical(), "push_pop, start_end, annotation (Kineto), or across (from one thread to another)."
        ),
    },
    "nccl_calls": {
        **_EVENT,
        **_ON_THREAD,
        "correlation": Column(pl.Int64, "That of its kernel (Kineto); null where thread and time join them (nsys)."),
        "bytes": Column(
            pl.Int64, "Message size as NCCL reports it: a rank's share of a gather, scatter or all-to-all."
        ),
        "communicator": Column(pl.String, "The communicator's name, the same on all its ranks."),
        "ranks": Column(pl.Int64, "Ranks of the communicator."),
    },
    "allocations": {
        **_EVENT,
        "device": Column(pl.Int32, "CUDA device ordinal."),
        "process": Column(pl.Int32, "Process id."),
        "correlation": Column(pl.Int64, "Joins with the call."),
        "bytes": Column(pl.Int64, "Bytes; negative where memory is freed."),
        "memory": Column(pl.String, "pageable, pinned, device, array, managed or unknown."),
    },
    "counters": {
        **_EVENT,
        "device": Column(pl.Int32, "GPU, by the order of the driver."),
        "value": Column(pl.Float64, "Its value."),
    },
    "operators": {**_EVENT, **_ON_THREAD},
}
"""Event tables of a trace. nvtx also holds Kineto's user annotations; operators are Kineto's CPU operators. An event
without duration (an allocation, a reading of a counter) ends where it starts."""

NCCL_KERNEL = r"(?i)nccl"
"""In the name of every kernel of NCCL, and of RCCL."""

DEVICES: dict[str, Column] = {
    "rank": Column(pl.Int64, "Global rank; null where the trace does not say."),
    "device": Column(pl.Int32, "CUDA device ordinal."),
    "name": Column(pl.String, "Model."),
    "uuid": Column(pl.String, "UUID, with its prefix GPU-."),
    "sm_count": Column(pl.Int64, "Streaming multiprocessors."),
    "warps_per_sm": Column(pl.Int64, "Largest number of resident warps of an SM."),
    "blocks_per_sm": Column(pl.Int64, "Largest number of resident blocks of an SM."),
    "registers_per_sm": Column(pl.Int64, "Registers of an SM."),
    "shared_bytes_per_sm": Column(pl.Int64, "Shared memory of an SM, bytes."),
    "memory_bytes": Column(pl.Int64, "Memory, bytes."),
    "memory_bytes_per_s": Column(pl.Float64, "Peak memory bandwidth, bytes/s."),
    "compute_capability": Column(pl.String, "Compute capability, such as 9.0."),
}
"""The devices of a trace; null is what the trace does not say."""


@dataclass(frozen=True)
class Trace:
    """The events of one file, as a reader returns them.

    `events`: all tables of EVENTS. `absent`: those that were not recorded: whether such things happened is not known.
    `problems`: what could not be read, a line each. `cut`: a part of the file could not be, so that which events are
    missing is not known: they lie in no order of time.
    `facts`: its format, its version and the like.
    """

    events: dict[str, pl.DataFrame]
    devices: pl.DataFrame
    absent: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
