"""The traced window as a graph of what had to wait for what, so that it can be run again with something changed.

Two kinds of nodes: calls of CUDA by the threads that launch, and work on the devices. A call follows another one after
what the host did between them; a backward pass in a thread of its own follows what the main thread called last. Work
begins after its launch, after the work before it on its stream, and after work on other streams that it was told to
wait for. A call that waits for its device ends after that work; a collective ends on all ranks after the last of them
has come. Of several reasons to wait the last one keeps its whole measured lag, so that an unchanged graph gives the
measured times again.

The idea is that of Daydream (Zhu et al., USENIX ATC 2020), across ranks as in dPRO (Hu et al., MLSys 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from nightsweep.analysis.metrics.steps import parts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
T = TypeVar("T")


@dataclass(frozen=True)
class Calls:
    """Calls of the threads that launch, by rank and start. Arrays of shape (calls,), ns.

    Attributes:
        rank, start, end: as they were measured; `name`: of each.
        allocates: whether the call asks for memory or gives it back; `synchronizes`: whether it is one of WAITS.
        after: the call that it follows, -1 for none; `gap`: from the end of that one to its start.
        least: how long it takes without what it waits for.
        waits_for: the work that it ends after, -1 for none; `lag`: from the end of that work to its own.
        loading_gap, loading: of `gap` and of the call itself, what the thread waited for its loader.
        framework: whether the time before the call lies in a range of the framework's, or its thread runs backward
            passes.
        noted: how much a tracer noted since the call before on these threads, with this call: calls and operators.
    """

    rank: Ints
    start: Ints
    end: Ints
    name: pl.Series
    allocates: Mask
    synchronizes: Mask
    after: Ints
    gap: Ints
    least: Ints
    waits_for: Ints
    lag: Ints
    loading_gap: Ints
    loading: Ints
    framework: Mask
    noted: Ints


@dataclass(frozen=True)
class Work:
    """Work on the devices by start. Arrays of shape (work,), ns.

    Attributes:
        rank, start, end: as they were measured.
        lane: a number for each stream of each rank; `previous`: the work before on it, -1 for none.
        call: the call that launched it, -1 where the trace has none; `launched`: when that began, else its own start.
        duration: how long it runs; of a matched collective, after the last rank has come.
        launch_lag: from the start of its call; `stream_lag`: from the end of the work before it on its stream.
        waits: for work on other streams, by the place of what waits; `wait_lag`: from the end of the last of it.
        group: of the same collective on all ranks, -1 for none.
        frame: what it is: kind (the table that it is from), category, bytes, direction, source.
        unexplained: how much later it began than all that it waits for explains.
    """

    rank: Ints
    start: Ints
    end: Ints
    lane: Ints
    previous: Ints
    call: Ints
    launched: Ints
    duration: Ints
    launch_lag: Ints
    stream_lag: Ints
    waits: Mapping[int, Sequence[int]]
    wait_lag: Ints
    group: Ints
    frame: pl.DataFrame
    unexplained: Ints


@dataclass(frozen=True)
class Graph:
    """`windows`: of each device of each rank, its steps (table `windows`) that the trace has, in order. `counted_calls`
    and `counted_work`: what belongs to steps that count, and so may be changed. `loader_holds_gil`: whether a
    loader's thread is known to hold the GIL while it frees batches. `kept`: what was found out about the graph that
    holds for all that changes make of it: a change gives other values to nothing but gap, least, waits_for (waits may
    only go), duration, launch_lag and group."""

    calls: Calls
    work: Work
    windows: tuple[pl.DataFrame, ...]
    counted_calls: Mask
    counted_work: Mask
    loader_holds_gil: bool = False
    kept: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)

    def known(self, what: object, find: Callable[[], T]) -> T:
        """What `find` finds out, which it is called for only once: it is `kept` by this name."""
        if what not in self.kept:
            self.kept[what] = find()
        found: T = self.kept[what]
        return found

    def device_steps(self, rank: int | None = None) -> int:
        """How many steps count, of the devices of one rank, or of all; at least 1."""
        return max(1, sum(int(own["counted"].sum()) for own in self.windows if rank in (None, own["rank"][0])))

    def rank_steps(self, rank: int | None = None) -> int:
        """How many steps count, of this rank or of all, whose calls are those of all their devices; at least 1."""
        counts: dict[int, int] = {}
        for own in self.windows:
            each = own["rank"][0]
            counts[each] = max(counts.get(each, 0), int(own["counted"].sum()))
        return max(1, sum(counts.values()) if rank is None else counts[rank])

    @property
    def calls_of_steps(self) -> Mask:
        """Calls of the steps that count and of what lies between their ranges on the host: from the end of the step
        before them, where there is one, to the end of the last. Not what ends a capture, such as a wait for all."""
        calls, found = self.calls, np.zeros(len(self.calls.start), bool)
        for own in self.windows:
            begins, ends = (
                own.filter("counted").select(pl.col("host_start_ns").min(), pl.col("host_end_ns").max()).row(0)
            )
            if begins is None:
                continue
            before = own.filter(pl.col("host_end_ns") <= begins)["host_end_ns"].to_list()
            since = max(before, default=begins)
            found |= (calls.rank == own["rank"][0]) & (calls.start >= since) & (calls.start < ends)
        return found


def where(frame: pl.DataFrame, condition: pl.Expr) -> Mask:
    """Which rows meet the condition; those of which it is not known do not."""
    return frame.select(condition.fill_null(False)).to_series().to_numpy()


def marked(count: int, places: Ints) -> Mask:
    """A mask of `count` items, true at these places; one below 0 is none. Of calls: those that launched some work, by
    the work's `call`."""
    found = np.zeros(count, bool)
    found[places[places >= 0]] = True
    return found


def is_batch(frame: pl.DataFrame) -> Mask:
    """Whether work (`Work.frame`) is the copy of a batch to its device."""
    return where(frame, (pl.col("direction") == "HtoD") & (pl.col("bytes") >= parts.LEAST_BATCH_BYTES))


def is_read(frame: pl.DataFrame, least_bytes: int) -> Mask:
    """Whether work (`Work.frame`) is a copy of `least_bytes` or more from its device: of data that the host works with,
    or of weights that are written to a file, not of a number."""
    return where(frame, (pl.col("direction") == "DtoH") & (pl.col("bytes") >= least_bytes))
