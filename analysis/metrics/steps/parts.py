"""Where a step's time goes on one device: parts that add up to the step's window to the nanosecond.

Time that several parts share goes to the first of PARTS. What is left when the device does nothing is idle, and goes by
what the thread did that launched the next activity: it waited for data, waited for the device, called the allocator,
launched, or did something else. A launch reaches from the call to the start of the activity that ends the gap; pauses
of at most DISPATCH_NS between two calls of a thread are the framework's own dispatch, and count as launching too.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from analysis.metrics import intervals
from analysis.metrics.intervals import Intervals
from analysis.metrics.steps import trace
from analysis.tables.parts import COPIES, HIDDEN, IDLE, PARTS

Ints = npt.NDArray[np.int64]

DISPATCH_NS = 100_000
DATA = (
    r"(?i)^(?:data|dataload(?:er|ing)?|data[_ ]?wait|load[_ ]?(?:data|batch)|get[_ ]?batch|next[_ ]?batch|fetch)$"
    r"|^enumerate\(DataLoader\)"
)
"""NVTX ranges, annotations and operators in which a thread waits for its loader."""
SYNC = r"Synchronize$|^cudaMemcpy$|^cuMemcpy(?:HtoD|DtoH)$|^cudaStreamQuery$|^hip\w*Synchronize$"
ALLOCATOR = (
    r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostRegister|HostUnregister)\w*$"
    r"|^cuMem(?:Alloc|Free|Create|Map|Unmap|Release|AddressReserve)\w*$"
)
LAUNCH = r"Launch|^(?:cuda|hip)Mem(?:cpy|set)\w*Async|^cuMem(?:cpy|set)\w*Async"


_TIMES = ("start_ns", "end_ns", "device", "thread", "launch_ns")
_NEEDED = {
    "kernels": (*_TIMES, "category"),
    "graphs": _TIMES,
    "copies": (*_TIMES, "direction", "source", "target"),
    "memsets": _TIMES,
}


def rows(
    events: Mapping[str, pl.DataFrame], steps: pl.DataFrame, windows: pl.DataFrame, device: int | None
) -> pl.DataFrame:
    """step, part, duration_ns of one device: all PARTS of each step, and HIDDEN."""
    own = {kind: of_device(events[kind].select(names), device) for kind, names in _NEEDED.items()}
    bounds = windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()
    sets = device_sets(own)
    lengths = {}
    covered = intervals.empty()
    before = np.zeros(windows.height, dtype=np.int64)
    for part in ("compute", "communication", *COPIES):
        if len(sets[part]):
            covered = intervals.merge(covered, sets[part])
        now = inside(covered, *bounds)
        lengths[part] = now - before
        before = now
    lengths[HIDDEN] = inside(sets["communication"], *bounds) - lengths["communication"]
    lengths |= idle(events, own, steps, windows, covered)
    numbers = windows["step"]
    return pl.concat(
        [
            pl.DataFrame({"step": numbers, "part": [part] * len(numbers), "duration_ns": lengths[part]})
            for part in (*PARTS, HIDDEN)
        ]
    ).sort("step", maintain_order=True)


def of_device(frame: pl.DataFrame, device: int | None) -> pl.DataFrame:
    return frame if device is None else frame.filter(pl.col("device") == device)


def device_sets(own: Mapping[str, pl.DataFrame]) -> dict[str, Intervals]:
    """The time of each part but idle, overlaps not yet taken out."""
    kernels, copies = own["kernels"], own["copies"]
    communication = pl.col("category").cast(pl.String) == "communication"
    sets = {
        "compute": trace.spans(
            pl.concat(
                [
                    kernels.filter(~communication).select("start_ns", "end_ns"),
                    own["graphs"].select("start_ns", "end_ns"),
                ]
            )
        ),
        "communication": trace.spans(kernels.filter(communication)),
        "memset": trace.spans(own["memsets"]),
    }
    kind = copies.select("start_ns", "end_ns", part=_copy_part())
    for part in COPIES[:-1]:
        sets[part] = trace.spans(kind.filter(pl.col("part") == part))
    return sets


def _copy_part() -> pl.Expr:
    host = pl.when(pl.col("direction") == "HtoD").then("source").otherwise("target")
    kind = pl.when(host.is_in(["pageable", "pinned"])).then("_" + host).otherwise(pl.lit(""))
    known = pl.col("direction").is_in(["HtoD", "DtoH"])
    low = pl.col("direction").str.to_lowercase()
    return pl.when(known).then("copy_" + low + kind).otherwise("copy_" + low)


def inside(covered: Intervals, start: Ints, end: Ints) -> Ints:
    """How much of a set lies in each [start, end), ns."""
    until = intervals.until(covered, np.concatenate((end, start)))
    return until[: len(end)] - until[len(end) :]


def idle(
    events: Mapping[str, pl.DataFrame],
    own: Mapping[str, pl.DataFrame],
    steps: pl.DataFrame,
    windows: pl.DataFrame,
    busy: Intervals,
) -> dict[str, Ints]:
    """Idle time of each window by what the launching thread did meanwhile."""
    gaps, of = gaps_in(busy, windows)
    found = {part: np.zeros(windows.height, dtype=np.int64) for part in IDLE}
    if not len(gaps):
        return found
    activities = pl.concat([own[k].select("start_ns", "thread", "launch_ns") for k in own]).sort("start_ns")
    thread, launch = following(activities, gaps)
    hosts = intervals.union(np.column_stack((steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy())))
    for each in np.unique(thread):
        mine = thread == each
        start, end = gaps[mine, 0], gaps[mine, 1]
        left = end - start
        for part, length in _by_thread(events, int(each), start, end, launch[mine], hosts).items():
            np.add.at(found[part], of[mine], length)
            left = left - length
        np.add.at(found["idle_outside"], of[mine], left)
    return found


def _by_thread(
    events: Mapping[str, pl.DataFrame], thread: int, start: Ints, end: Ints, launch: Ints, hosts: Intervals
) -> dict[str, Ints]:
    """Of each gap, the length of each kind of idle time but the last."""
    sets = thread_sets(events, thread)
    # What ends a gap was launched at `launch`; from there on the device, and nothing else, is waited for.
    stop = np.clip(launch, start, end)
    found, covered, before = {}, intervals.empty(), np.zeros(len(start), dtype=np.int64)
    for part in IDLE[:3]:
        covered = intervals.merge(covered, sets[part])
        now = inside(covered, start, stop)
        found[part], before = now - before, now
    covered = intervals.merge(covered, sets["idle_launch"])
    now = inside(covered, start, stop)
    found["idle_launch"] = now - before + (end - stop)
    in_step = inside(intervals.merge(covered, hosts), start, stop)
    found["idle_host"] = in_step - now
    return found


def thread_sets(events: Mapping[str, pl.DataFrame], thread: int) -> dict[str, Intervals]:
    """When a thread waits for data, waits for the device, allocates, launches."""
    calls, marks = (
        events[kind].select(*trace.SPAN, "thread").filter(pl.col("thread") == thread) for kind in ("runtime", "nvtx")
    )
    ranges = trace.named(marks, DATA)
    launches = trace.spans(trace.named(calls, LAUNCH))
    joined = launches.copy()
    if len(joined) > 1:
        near = joined[1:, 0] - joined[:-1, 1] <= DISPATCH_NS
        joined[:-1, 1][near] = joined[1:, 0][near]
    return {
        "idle_data_wait": trace.spans(ranges),
        "idle_sync": trace.spans(trace.named(calls, SYNC)),
        "idle_allocator": trace.spans(trace.named(calls, ALLOCATOR)),
        "idle_launch": intervals.union(joined),
    }


def gaps_in(busy: Intervals, windows: pl.DataFrame) -> tuple[Intervals, Ints]:
    """Idle stretches of all windows, and the place of the window of each."""
    start, end = windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()
    low = np.searchsorted(busy[:, 1], start, side="right")
    high = np.searchsorted(busy[:, 0], end, side="left")
    counts = np.maximum(high - low, 0) + 1
    of = np.repeat(np.arange(len(start)), counts)
    rank = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    place = low[of] + rank
    ends = np.concatenate((busy[:, 1], [0]))
    begins = np.concatenate((busy[:, 0], [0]))
    first = np.where(rank == 0, start[of], np.maximum(ends[place - 1], start[of]))
    last = np.where(rank == counts[of] - 1, end[of], np.minimum(begins[np.minimum(place, len(begins) - 1)], end[of]))
    kept = last > first
    return np.column_stack((first[kept], last[kept])), of[kept]


def following(activities: pl.DataFrame, gaps: Intervals) -> tuple[Ints, Ints]:
    """Thread and launch of the first activity to start at each gap's end or later; of the last one where none does. A
    trace of a CPU has none at all."""
    if activities.is_empty():
        return np.full(len(gaps), -1), np.full(len(gaps), np.iinfo(np.int64).max)
    start = activities["start_ns"].to_numpy()
    place = np.minimum(np.searchsorted(start, gaps[:, 1], side="left"), len(start) - 1)
    thread = activities["thread"].fill_null(-1).to_numpy()[place]
    # Without a launching call it is not known that anything was launched before the activity began.
    launch = activities["launch_ns"].fill_null(np.iinfo(np.int64).max).to_numpy()[place]
    late = start[place] < gaps[:, 1]
    return thread, np.where(late, np.iinfo(np.int64).max, launch)
