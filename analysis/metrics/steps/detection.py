"""The steps of a trace: from NVTX ranges that look like steps, else from the period in which kernels are launched.

A step's window is the time that its parts add up to (see `windows`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]

NUMBERED = r"(?i)^(?:[\w.]*[:/ ])?(?:(?:global|train(?:ing)?|profiler)[_ ]?)?(?:step|iter(?:ation)?)s?[ _#:=-]*(\d+)$"
"""Such as `step 7`, `iteration_7`, `ProfilerStep#7`, `train_step: 7`."""
UNNUMBERED = r"(?i)^(?:[\w.]*[:/ ])?(?:train(?:ing)?[_ ]?)?(?:step|iter(?:ation)?)$"
LEAST_LAUNCHES, LEAST_REPEATS = 24, 3
"""With fewer, what repeats may be chance: a period of 8 launches, three times."""
LEAST_MATCH = 0.9
"""Share of launches that must repeat a period later: a step now and then does more, as one that logs."""
APART = 0.05
"""Share of a step that the host may spend between two ranges that follow on each other, as in a collection of garbage:
of three steps the mean is 2 % too short at most if the last one lacks as much."""
_SCHEMA = {"step": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}


def find_steps(ranges: pl.DataFrame, launches: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Find the steps on the host.

    Args:
        ranges: nvtx of one process.
        launches: launch_ns, launch_end_ns and name of its kernels.

    Returns:
        The steps (step, start_ns, end_ns, in order of time), and what they come from: nvtx, launches or none.
    """
    names = ranges["name"].unique().cast(pl.String)
    for pattern, numbered in ((NUMBERED, True), (UNNUMBERED, False)):
        wanted = names.filter(names.str.contains(pattern)).cast(pl.Categorical())
        own = ranges.filter(pl.col("name").is_in(wanted.implode()))
        if not own.is_empty():
            return _steps_of_ranges(own, pattern, numbered), "nvtx"
    periodic = _steps_by_period(launches.filter(pl.col("launch_ns").is_not_null()).sort("launch_ns"))
    return (periodic, "launches") if periodic is not None else (pl.DataFrame(schema=_SCHEMA), "none")


def _steps_of_ranges(own: pl.DataFrame, pattern: str, numbered: bool) -> pl.DataFrame:
    """Ranges as steps, by their numbers: ranges of one number on several threads are one step.

    Without numbers, or where these start again, as in each epoch, it is by their order on the thread with most of them.
    """
    if numbered:
        number = pl.col("name").cast(pl.String).str.extract(pattern).cast(pl.Int32, strict=False)
        marked = own.with_columns(step=number)
        steps = marked.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("start_ns")
        disjoint = (steps["start_ns"].shift(-1) >= steps["end_ns"]).all()
        if disjoint and not steps["step"].has_nulls():  # null: longer than a number of a step can be, such as a date
            return steps
    main = own["thread"].value_counts(sort=True)["thread"][0]
    ordered = own.filter(pl.col("thread") == main).sort("start_ns").with_row_index("step")
    return ordered.select(pl.col("step").cast(pl.Int32), "start_ns", "end_ns")


def _steps_by_period(launches: pl.DataFrame) -> pl.DataFrame | None:
    """Steps by the period of the launches; each begins after the longest pause of the host in a period, and ends where
    the next begins. What comes after the last beginning is no step: nothing tells when it would have ended."""
    if launches.height < LEAST_LAUNCHES:
        return None
    name = launches["name"].cast(pl.Categorical()).to_physical().to_numpy().astype(np.int64)
    period = _period(name)
    if period is None:
        return None
    start, end = launches["launch_ns"].to_numpy(), launches["launch_end_ns"].to_numpy()
    pause = np.append(0, start[1:] - end[:-1])
    whole = len(pause) // period * period
    first = int(np.argmax(np.median(pause[:whole].reshape(-1, period)[1:], axis=0)))
    begins = start[first::period]
    return pl.DataFrame(
        {"step": np.arange(len(begins) - 1), "start_ns": begins[:-1], "end_ns": begins[1:]}, schema=_SCHEMA
    )


def _period(name: Ints) -> int | None:
    """The distance at which the sequence repeats itself; None where it does not.

    It is the commonest distance between neighbours of one name for which nearly all of the sequence repeats.
    """
    order = np.argsort(name, kind="stable")
    gaps = np.diff(order)[np.diff(name[order]) == 0]
    distances, counts = np.unique(gaps[gaps > 1], return_counts=True)
    most = len(name) // LEAST_REPEATS
    for distance in distances[np.argsort(-(counts * distances), kind="stable")][:50].tolist():
        if (
            LEAST_LAUNCHES // LEAST_REPEATS <= distance <= most
            and np.mean(name[distance:] == name[:-distance]) >= LEAST_MATCH
        ):
            return int(distance)
    return None


def steps_at(steps: pl.DataFrame, at: pl.Series) -> pl.Series:
    """The number of the step in whose host range each time lies; null for none."""
    start, end, number = (steps[name].to_numpy() for name in ("start_ns", "end_ns", "step"))
    if not len(start):
        return pl.Series("step", [None] * len(at), dtype=pl.Int32)
    times = at.fill_null(np.iinfo(np.int64).min).to_numpy()
    place = np.searchsorted(start, times, side="right") - 1
    inside = (place >= 0) & (times < end[place])
    return pl.Series("step", np.where(inside, number[place], 0)).set(pl.Series(~inside), None)


def windows(steps: pl.DataFrame, launched: pl.DataFrame, calls: pl.Series) -> pl.DataFrame:
    """The window of each step: the time that its parts add up to.

    The host may run ahead of the GPU, so the next step begins when the host range of this one and the last activity
    that it launched have both ended, or with its host range where that begins later. This step's window ends there, so
    that what lies between two ranges (a loader outside of them) counts too. The first step begins with its host range,
    or when work that was launched before it has ended.

    Of several steps the first is not `counted`: a capture begins in it, on each rank at another moment, and the first
    step after a pause refills all queues. Nor is the last of at least three, where a capture ended before the device
    had done what that step launched (the work of its last calls is not there), or where its end is not seen
    (`last_is_open`). Only this function decides which steps count.

    Args:
        steps: of `find_steps`.
        launched: launch_ns, start_ns and end_ns of activities.
        calls: starts of the calls that launch.

    Returns:
        step, start_ns, end_ns, counted.
    """
    if steps.is_empty():
        return steps.with_columns(counted=pl.lit(True))
    first = steps["start_ns"][0]
    marked = launched.drop_nulls("launch_ns").with_columns(steps_at(steps, launched["launch_ns"].drop_nulls()))
    own = marked.drop_nulls("step").group_by("step").agg(last=pl.col("end_ns").max())
    before = marked.filter(pl.col("launch_ns") < first)["end_ns"].max()
    ends = pl.max_horizontal("last", "end_ns", pl.lit(before, pl.Int64)).cum_max()
    ended = steps.join(own, on="step", how="left", maintain_order="left").with_columns(end_ns=ends)
    begins = pl.max_horizontal("start_ns", pl.col("end_ns").shift(1, fill_value=before))
    until = pl.max_horizontal("end_ns", begins.shift(-1))
    found = ended.select("step", start_ns=begins, end_ns=until)
    hosts = steps.select(host_start_ns="start_ns", host_end_ns="end_ns")
    cut = _last_is_cut(steps, calls, marked["launch_ns"]) or (steps.height > 2 and last_is_open(found.hstack(hosts)))
    place = pl.int_range(pl.len())
    counted = ((place > 0) | (pl.len() == 1)) & ((place < pl.len() - 1) | pl.lit(not cut))
    return found.with_columns(counted=counted)


def last_is_open(windows: pl.DataFrame) -> bool:
    """Whether the end of the last step is not seen: a step before it goes on after its range until that of the next
    begins, with a loader that is outside of them or a checkpoint, and after the last one there is no next.

    Args:
        windows: start_ns, end_ns, host_start_ns and host_end_ns, in order of time.
    """
    until = pl.col("host_start_ns").shift(-1)
    apart = until - pl.col("host_end_ns") > APART * (pl.col("end_ns") - pl.col("start_ns"))
    return bool(windows.select((apart & (pl.col("end_ns") == until)).any()).item())


def _last_is_cut(steps: pl.DataFrame, calls: pl.Series, launches: pl.Series) -> bool:
    """Whether the last calls of the last step launched work that is not in the trace, more than other steps end with.

    Args:
        steps: of `find_steps`.
        calls: starts of the calls that launch.
        launches: starts of the calls of which the trace has work.
    """
    if steps.height < LEAST_REPEATS or launches.is_empty():
        return False
    last, made = steps["step"][-1], calls.sort()
    marked = made.to_frame("at").with_columns(steps_at(steps, made), done=made.is_in(launches.implode()))
    without = (pl.col("done").reverse().cum_sum() == 0).sum()
    tails = dict(marked.filter(pl.col("step") != last).group_by("step").agg(without).iter_rows())
    own = marked.filter(pl.col("step") == last)
    missing = own.filter(pl.col("at") > launches.max()).height
    return missing > (1 - LEAST_MATCH) * own.height and missing > max(tails.values(), default=0)
