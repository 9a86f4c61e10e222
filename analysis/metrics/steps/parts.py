"""The parts of a step on one device: sets of time that add up to the step's window to the nanosecond.

Time that several parts share goes to the first of `nightsweep.analysis.tables.part_names.BUSY`. The rest, when the
device does nothing, is idle, and its part is what the thread did that launched the next activity. A launch reaches from
the call to the start of the activity that ends the gap; pauses of at most DISPATCH_NS between two calls of a thread are
the framework's dispatch, and count as launching too.

In the trace of a CPU, compute is PyTorch's `aten::` operators and communication the process group's. There the loader's
ranges come before compute: the operators inside them make the batch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from nightsweep.analysis.metrics import intervals
from nightsweep.analysis.metrics.intervals import Intervals
from nightsweep.analysis.metrics.steps import loader, selection
from nightsweep.analysis.tables.part_names import BUSY, COPIES, GROUP, HIDDEN, IDLE, PARTS

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Frames = Mapping[str, pl.DataFrame]
Sets = dict[str, Intervals]

DISPATCH_NS = 100_000
"""A longer pause between two launches is not the framework's: an operator of PyTorch takes some 10 us to dispatch."""
QUEUED_NS = 100_000
"""Longer between launch and start is waiting: a free device begins some 10 us after the call."""
LEAST_BATCH_BYTES = 1 << 12
"""A smaller copy to or from the device is a number, not a batch: waiting for it is like reading one."""
LARGE_BYTES = 1 << 20
"""So much is copied from a device when weights are written, not when numbers are read."""
TORCH = r"^Optimizer\.(?:step|zero_grad)#"
"""Ranges that PyTorch makes by itself. In a trace that has them its DataLoader would have made its own, too."""
FRAMEWORK = r"(?i)optim|forward|backward|zero_grad|clip|DistributedDataParallel|all_?reduce|nccl"
"""Ranges in which a thread launches, if slowly: a pause in one of them is no work of the script's own."""
WORKING = rf"{FRAMEWORK}|checkpoint|save"
"""Ranges in which a thread does what no loader does: a pause in one of them before a copy is none for a batch."""
SYNC = r"Synchronize$|^cudaMemcpy$|^cuMemcpy(?:HtoD|DtoH)$|^cudaStreamQuery$|^hip\w*Synchronize$"
ALLOCATOR = (
    r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostRegister|HostUnregister)\w*$"
    r"|^cuMem(?:Alloc|Free|Create|Map|Unmap|Release|AddressReserve)\w*$"
)
LAUNCH = r"Launch|^(?:cuda|hip)Mem(?:cpy|set)\w*Async|^cuMem(?:cpy|set)\w*Async"
_WAITING = IDLE[:4]
"""What the launching thread did, by its calls and ranges; of several the first counts."""

_TIMES = ("start_ns", "end_ns", "device", "thread", "launch_ns", "launch_end_ns")
_NEEDED = {
    "kernels": (*_TIMES, "category"),
    "graphs": _TIMES,
    "copies": (*_TIMES, "direction", "source", "target", "bytes"),
    "memsets": _TIMES,
}


def part_sets(events: Frames, steps: pl.DataFrame, windows: pl.DataFrame, device: int | None) -> tuple[Sets, Intervals]:
    """The time of each part of a step in these windows.

    Args:
        events: of one rank, attributed to their launches.
        steps: the ranges of all steps on the host.
        windows: start_ns and end_ns of the counted steps, disjoint, in order of time.
        device: its CUDA ordinal; None for a trace without devices, such as one of a CPU.

    Returns:
        The set of each of PARTS, disjoint, and the set of communication under compute.
    """
    own = {kind: device_rows(events[kind].select(names), device) for kind, names in _NEEDED.items()}
    whole = intervals.union(windows.select("start_ns", "end_ns").to_numpy())
    hosts = intervals.union(steps.select("start_ns", "end_ns").to_numpy())
    if not any(frame.height for frame in own.values()):
        return _cpu_sets(events, hosts, whole), intervals.empty()
    sets = _busy_sets(own)
    found, covered = {}, intervals.empty()
    for part in BUSY:
        inside_steps = intervals.intersect(sets[part], whole) if len(sets[part]) else sets[part]
        found[part] = intervals.subtract(inside_steps, covered)
        covered = intervals.merge(covered, found[part]) if len(found[part]) else covered
    hidden = intervals.subtract(intervals.intersect(sets["communication"], whole), found["communication"])
    return found | _idle_sets(events, own, hosts, windows, covered), hidden


def device_rows(frame: pl.DataFrame, device: int | None) -> pl.DataFrame:
    """The rows of one device; all rows for None."""
    return frame if device is None else frame.filter(pl.col("device") == device)


def table(sets: Mapping[str, Intervals], hidden: Intervals) -> pl.DataFrame:
    """The sets as rows of part, start_ns and end_ns, in order of time."""
    frames = [
        pl.DataFrame({"start_ns": covered[:, 0], "end_ns": covered[:, 1]}).with_columns(
            pl.lit(part, dtype=pl.Categorical()).alias("part")
        )
        for part, covered in (*sets.items(), (HIDDEN, hidden))
        if len(covered)
    ]
    columns = ("part", "start_ns", "end_ns")
    empty = pl.DataFrame(schema={"part": pl.Categorical(), "start_ns": pl.Int64, "end_ns": pl.Int64})
    return pl.concat([empty, *(frame.select(columns) for frame in frames)]).sort("start_ns", "end_ns")


def sets_of(rows: pl.DataFrame) -> Sets:
    """The sets of PARTS and HIDDEN, from the rows of `table`."""
    by_part = rows.with_columns(pl.col("part").cast(pl.String)).partition_by("part", as_dict=True)
    found = {str(part): own.select("start_ns", "end_ns").to_numpy() for (part,), own in by_part.items()}
    return {part: found.get(part, intervals.empty()) for part in (*PARTS, HIDDEN)}


def lengths(sets: Mapping[str, Intervals], hidden: Intervals, windows: pl.DataFrame) -> pl.DataFrame:
    """The time of each of PARTS, and of HIDDEN, in each window: rows of step, part and duration_ns."""
    bounds = windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()
    numbers = windows["step"]
    rows = [
        pl.DataFrame({"step": numbers, "part": [part] * len(numbers), "duration_ns": lengths_inside(covered, *bounds)})
        for part, covered in (*((part, sets[part]) for part in PARTS), (HIDDEN, hidden))
    ]
    return pl.concat(rows).sort("step", maintain_order=True)


def group_lengths(rows: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Rows of `lengths` added up to GROUPS, which figures show, by these keys."""
    parts = rows.with_columns(pl.col("part").cast(pl.String)).filter(pl.col("part") != HIDDEN)
    named = parts.with_columns(pl.col("part").replace_strict(GROUP, return_dtype=pl.String))
    return named.group_by(*keys, "part", maintain_order=True).agg(pl.col("duration_ns").sum())


def lengths_inside(covered: Intervals, start: Ints, end: Ints) -> Ints:
    """How much of a set lies in each [start, end), ns; `start` and `end` of shape (n,)."""
    before = intervals.length_before(covered, np.concatenate((end, start)))
    return before[: len(end)] - before[len(end) :]


def _cpu_sets(events: Frames, hosts: Intervals, whole: Intervals) -> Sets:
    kinds = selection.split_cpu_by_kind(events)
    order = {
        "idle_data_wait": selection.covered_time(selection.filter_by_name(events["nvtx"], loader.DATA)),
        "compute": selection.covered_time(kinds["compute"]),
        "communication": selection.covered_time(kinds["communication"]),
        "idle_host": hosts,
        "idle_outside": whole,
    }
    found, left = dict.fromkeys(PARTS, intervals.empty()), whole
    for part, covered in order.items():
        found[part], left = intervals.intersect(left, covered), intervals.subtract(left, covered)
    return found


def _busy_sets(own: Frames) -> Sets:
    """The time of each of BUSY, overlaps included."""
    kernels, copies = own["kernels"], own["copies"]
    communication = pl.col("category").cast(pl.String) == "communication"
    computing = [
        kernels.filter(~communication).select("start_ns", "end_ns"),
        own["graphs"].select("start_ns", "end_ns"),
    ]
    sets = {
        "compute": selection.covered_time(pl.concat(computing)),
        "communication": selection.covered_time(kernels.filter(communication)),
        "memset": selection.covered_time(own["memsets"]),
    }
    kind = copies.select("start_ns", "end_ns", part=_copy_part())
    for part in COPIES[:-1]:
        sets[part] = selection.covered_time(kind.filter(pl.col("part") == part))
    return sets


def _copy_part() -> pl.Expr:
    host = pl.when(pl.col("direction") == "HtoD").then("source").otherwise("target")
    kind = pl.when(host.is_in(["pageable", "pinned"])).then("_" + host).otherwise(pl.lit(""))
    known = pl.col("direction").is_in(["HtoD", "DtoH"])
    low = pl.col("direction").str.to_lowercase()
    return pl.when(known).then("copy_" + low + kind).otherwise("copy_" + low)


def _idle_sets(events: Frames, own: Frames, hosts: Intervals, windows: pl.DataFrame, busy: Intervals) -> Sets:
    """The time of each of IDLE in the windows. `own`: activities of the device; `busy`: when any of them ran."""
    gaps = _gaps(busy, windows)
    found = dict.fromkeys(IDLE, intervals.empty())
    if not len(gaps):
        return found
    ends = pl.concat([own[k].select("start_ns", "thread", "launch_ns", "launch_end_ns") for k in own]).sort("start_ns")
    thread, launch, launched = _next_launches(ends, gaps)
    batch = _ends_with_batch(own["copies"], ends, gaps) & (not marks_loaders(events["nvtx"]))
    pieces: dict[str, list[Intervals]] = {part: [] for part in IDLE}
    for number in np.unique(thread):
        mine = thread == number
        sets = thread_sets(events, int(number))
        for part, piece in _thread_idle_sets(
            sets, gaps[mine], launch[mine], launched[mine], hosts, batch[mine]
        ).items():
            pieces[part].append(piece)
    return {part: intervals.merge(*several) for part, several in pieces.items()}


def marks_loaders(ranges: pl.DataFrame) -> bool:
    """Whether these ranges would tell a wait for a loader."""
    return not selection.filter_by_name(ranges, rf"{loader.DATA}|{TORCH}").is_empty()


def _thread_idle_sets(sets: Sets, gaps: Intervals, launch: Ints, launched: Ints, hosts: Intervals, batch: Mask) -> Sets:
    """The idle parts of the gaps that end with a launch of this thread.

    `sets`: what the thread did; `launch`, `launched`: start and end of the call that launched the activity at the end
    of each gap; `batch`: whether that activity is the copy of a batch.
    """
    stop, called = (np.clip(at, gaps[:, 0], gaps[:, 1]) for at in (launch, launched))
    begun = np.column_stack((called, gaps[:, 1]))
    late = gaps[:, 1] - called > QUEUED_NS
    ahead = (called == gaps[:, 0]) & ~late
    left = intervals.union(np.column_stack((gaps[:, 0], stop)))
    found = {"idle_queued": intervals.union(begun[late]), "idle_between": intervals.union(begun[ahead])}
    for part in _WAITING:
        found[part] = intervals.intersect(left, sets[part])
        left = intervals.subtract(left, sets[part])
    launching = np.column_stack((stop, np.where(late | ahead, called, gaps[:, 1])))
    found["idle_launch"] = intervals.merge(found["idle_launch"], launching)
    before = intervals.union(np.column_stack((gaps[:, 0], stop))[batch])
    before = intervals.subtract(intervals.intersect(left, before), sets["working"])
    found["idle_unmarked_data"] = before
    left = intervals.subtract(left, before)
    found["idle_host"] = intervals.intersect(left, hosts)
    found["idle_outside"] = intervals.subtract(left, hosts)
    return found


def thread_sets(events: Frames, thread: int) -> Sets:
    """The times in which a thread waits for data, waits for the device, allocates or launches; `working`: in which it
    is in a range that no loader is in."""
    calls, marks = (
        events[kind].select(*selection.SPAN, "thread").filter(pl.col("thread") == thread)
        for kind in ("runtime", "nvtx")
    )
    joined = selection.covered_time(selection.filter_by_name(calls, LAUNCH)).copy()
    if len(joined) > 1:
        near = joined[1:, 0] - joined[:-1, 1] <= DISPATCH_NS
        joined[:-1, 1][near] = joined[1:, 0][near]
    return {
        "idle_data_wait": loader.waits(events, [thread]),
        "idle_sync": selection.covered_time(selection.filter_by_name(calls, SYNC)),
        "idle_allocator": selection.covered_time(selection.filter_by_name(calls, ALLOCATOR)),
        "idle_launch": intervals.union(joined),
        "working": selection.pass_time(marks, WORKING),
    }


def _gaps(busy: Intervals, windows: pl.DataFrame) -> Intervals:
    """The idle gaps of all windows; a gap across the end of a window is cut there."""
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
    return np.column_stack((first[kept], last[kept]))


def _next_launches(activities: pl.DataFrame, gaps: Intervals) -> tuple[Ints, Ints, Ints]:
    """Thread, and start and end of the launch, of the first activity that starts at or after each gap's end.

    Where none does, those of the last activity.
    """
    start = activities["start_ns"].to_numpy()
    place = np.minimum(np.searchsorted(start, gaps[:, 1], side="left"), len(start) - 1)
    late = start[place] < gaps[:, 1]
    # Without a launching call it is not known that anything was launched before the activity began.
    never = np.iinfo(np.int64).max
    calls = (activities[name].fill_null(never).to_numpy()[place] for name in ("launch_ns", "launch_end_ns"))
    launch, launched = (np.where(late, never, at) for at in calls)
    return activities["thread"].fill_null(-1).to_numpy()[place], launch, launched


def _ends_with_batch(copies: pl.DataFrame, activities: pl.DataFrame, gaps: Intervals) -> Mask:
    """Whether the activity at the end of each gap is a copy to the device of the size of a batch, and that before the
    gap no copy from it of such a size: then the host works with what it has copied."""
    starts = activities["start_ns"].to_numpy()
    ends = starts[np.minimum(np.searchsorted(starts, gaps[:, 1]), len(starts) - 1)]
    large = copies.filter(pl.col("direction") == "HtoD", pl.col("bytes") >= LEAST_BATCH_BYTES)["start_ns"].to_numpy()
    out = copies.filter(pl.col("direction") == "DtoH", pl.col("bytes") >= LEAST_BATCH_BYTES)["end_ns"].to_numpy()
    return np.isin(ends, large) & ~np.isin(gaps[:, 0], out)
