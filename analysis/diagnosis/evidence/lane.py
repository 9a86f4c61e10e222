"""One device of one rank over its steps: the exact parts of each step, and the sets of time that causes are made of."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from analysis.diagnosis.evidence import exposed, waits
from analysis.diagnosis.evidence.exposed import Exposed
from analysis.diagnosis.thresholds import PAUSE
from analysis.metrics import intervals
from analysis.metrics.intervals import Intervals
from analysis.metrics.steps import parts, selection
from analysis.tables.part_names import BUSY

Ints = npt.NDArray[np.int64]
Frames = Mapping[str, pl.DataFrame]

LATE = ("idle_sync", "idle_allocator", "idle_launch", "idle_host", "idle_outside")
"""Idle because nothing was launched in time."""


@dataclass(frozen=True)
class Lane:
    """`steps`: step, start_ns, end_ns of those that count, host_start_ns, host_end_ns of their ranges; `source`: where
    steps are from; `sets`: the time of each of tables.parts.PARTS in these; `own`: the
    device's activities; `events`: the rank's."""

    rank: int
    device: int | None
    steps: pl.DataFrame
    source: str
    sets: Mapping[str, Intervals]
    own: Frames
    events: Frames

    def lengths(self, covered: Intervals) -> Ints:
        """How much of a set lies in each step, ns."""
        return parts.lengths_inside(covered, self.steps["start_ns"].to_numpy(), self.steps["end_ns"].to_numpy())

    def summed(self, start: pl.Series | Ints, length: npt.ArrayLike = 1.0) -> npt.NDArray[np.float64]:
        """Lengths of events added up by the step in which they start, ns; without lengths, how many they are."""
        start = np.asarray(start)
        length = np.broadcast_to(np.asarray(length, dtype=np.float64), start.shape)
        begins, ends = self.steps["start_ns"].to_numpy(), self.steps["end_ns"].to_numpy()
        place = np.searchsorted(begins, start, side="right") - 1
        inside = (place >= 0) & (start < ends[np.maximum(place, 0)])
        return np.bincount(place[inside], weights=length[inside], minlength=len(begins)).astype(np.float64)

    def ranges(self, pattern: str) -> Intervals:
        """When a range of such a name was open on the host."""
        names = self.events["nvtx"]["name"].unique().cast(pl.String)
        wanted = names.filter(names.str.contains(pattern)).cast(pl.Categorical())
        return selection.covered_time(self.events["nvtx"].filter(pl.col("name").is_in(wanted.implode())))

    @functools.cached_property
    def periods(self) -> Ints:
        return (self.steps["end_ns"] - self.steps["start_ns"]).to_numpy()

    @functools.cached_property
    def host_work(self) -> npt.NDArray[np.float64]:
        """How long the host took for each step, ns, without calls of CUDA in which it stood still: it waited for its
        device, or for room in the queue. NaN where no ranges tell of steps."""
        if self.source != "nvtx":
            return np.full(self.steps.height, np.nan)
        launching = pl.concat([frame["thread"] for frame in self.own.values()]).drop_nulls().unique()
        long = pl.col("end_ns") - pl.col("start_ns") >= PAUSE.value
        still = selection.covered_time(self.events["runtime"].filter(pl.col("thread").is_in(launching.implode()), long))
        begin, end = self.steps["host_start_ns"].to_numpy(), self.steps["host_end_ns"].to_numpy()
        return np.asarray(end - begin - parts.lengths_inside(still, begin, end), dtype=np.float64)

    @property
    def launches_known(self) -> bool:
        """Whether the trace has the calls that launched most of what ran."""
        launched = pl.concat([frame["launch_ns"] for frame in self.own.values()])
        return launched.null_count() < len(launched) / 2

    @functools.cached_property
    def exposed(self) -> Exposed:
        here = pl.lit(True) if self.device is None else pl.col("device").eq_missing(self.device)
        return exposed.divide(self.events["collectives"].filter(here), self.sets["communication"])

    @functools.cached_property
    def host_idle(self) -> Intervals:
        """Idle because nothing was launched in time, whatever the reason; waits for data apart."""
        return intervals.merge(*(self.sets[part] for part in LATE))

    @functools.cached_property
    def waits(self) -> pl.DataFrame:
        """Calls in which a launching thread waited for the device (waits.calls)."""
        busy = intervals.merge(*(self.sets[part] for part in BUSY))
        return waits.calls(self.events, self.own, intervals.subtract(busy, self.exposed.waiting))

    @functools.cached_property
    def lost(self) -> dict[str, Intervals]:
        """Idle time that waits for the device led to, by their reason."""
        return waits.idle_of_waits(self.waits, self.host_idle)

    @functools.cached_property
    def unled(self) -> Intervals:
        """Idle time of the host that no wait for the device explains."""
        return intervals.subtract(self.host_idle, intervals.merge(*self.lost.values()))

    @functools.cached_property
    def churn(self) -> Intervals:
        """Idle because memory was asked for or given back, with the waits in these calls."""
        asking = intervals.merge(self.sets["idle_allocator"], self.ranges("^empty_cache$"))
        return intervals.merge(self.lost["allocator"], intervals.intersect(self.unled, asking))

    @functools.cached_property
    def dispatch(self) -> Intervals:
        """Idle because the host was too slow: all that nothing else explains."""
        return intervals.subtract(self.unled, self.churn)


def device_lane(
    events: Frames, windows: pl.DataFrame, spans: pl.DataFrame, rank: int, device: int | None
) -> Lane | None:
    """The lane of a device; None where it did nothing in any step.

    Args:
        events: tables of this rank's events, by name.
        windows: the table `windows` of this rank and device.
        spans: the table `parts` of this rank and device.
    """
    counted = windows.filter("counted").sort("start_ns")
    own = {kind: parts.device_rows(events[kind], device) for kind in ("kernels", "graphs", "copies", "memsets")}
    sets = parts.sets_of(spans)
    if counted.is_empty() or not any(len(sets[part]) for part in BUSY) or not any(f.height for f in own.values()):
        return None
    return Lane(rank, device, counted, str(counted["source"][0]), sets, own, events)
