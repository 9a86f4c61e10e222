"""One device of one rank over its steps: the exact parts of each step, and the sets of time that causes are made of."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nightsweep.analysis.metrics import intervals
from nightsweep.analysis.metrics.intervals import Intervals
from nightsweep.analysis.metrics.steps import loader, parts
from nightsweep.analysis.tables.part_names import BUSY

Ints = npt.NDArray[np.int64]
Frames = Mapping[str, pl.DataFrame]


@dataclass(frozen=True)
class Lane:
    """`windows`: of all steps; `steps`: step, start_ns, end_ns of those that count, host_start_ns, host_end_ns of their
    ranges; `source`: where steps are from; `sets`: the time of each of tables.parts.PARTS in these; `own`: the
    device's activities; `events`: the rank's."""

    rank: int
    device: int | None
    windows: pl.DataFrame
    steps: pl.DataFrame
    source: str
    sets: Mapping[str, Intervals]
    own: Frames
    events: Frames

    def lengths(self, covered: Intervals) -> Ints:
        """How much of a set lies in each step, ns."""
        return parts.lengths_inside(covered, self.steps["start_ns"].to_numpy(), self.steps["end_ns"].to_numpy())

    def summed(self, start: pl.Series, length: pl.Series) -> npt.NDArray[np.float64]:
        """Lengths of events added up by the step in which they start, ns."""
        begins, ends = self.steps["start_ns"].to_numpy(), self.steps["end_ns"].to_numpy()
        place = np.searchsorted(begins, start.to_numpy(), side="right") - 1
        inside = (place >= 0) & (start.to_numpy() < ends[np.maximum(place, 0)])
        return np.bincount(place[inside], weights=length.to_numpy()[inside], minlength=len(begins)).astype(np.float64)

    @functools.cached_property
    def periods(self) -> Ints:
        return (self.steps["end_ns"] - self.steps["start_ns"]).to_numpy()

    @functools.cached_property
    def launching(self) -> pl.Series:
        """The threads that launched what ran."""
        return pl.concat([frame["thread"] for frame in self.own.values()]).drop_nulls().unique()

    @functools.cached_property
    def loader_starts(self) -> Ints:
        """For how long such a thread starts a loader's workers in each step, ns."""
        return self.lengths(intervals.merge(*(loader.starts(self.events, thread) for thread in self.launching)))

    @property
    def launches_known(self) -> bool:
        """Whether the trace has the calls that launched most of what ran."""
        launched = pl.concat([frame["launch_ns"] for frame in self.own.values()])
        return launched.null_count() < len(launched) / 2

    @functools.cached_property
    def collectives(self) -> pl.DataFrame:
        """The device's collectives, as ingest writes them."""
        here = pl.lit(True) if self.device is None else pl.col("device").eq_missing(self.device)
        return self.events["collectives"].filter(here)

    @functools.cached_property
    def heard(self) -> bool:
        """Whether all ranks of most of its collectives have a trace, which it takes to tell waiting from transfer."""
        joint = self.collectives.filter(pl.col("collective").cast(pl.String).ne_missing("send_recv"))  # of two ranks
        whole = joint.select((pl.col("matched_ranks") >= pl.coalesce("ranks", pl.lit(2))).sum()).item()
        return bool(whole >= joint.height / 2)


def is_one_process(lanes: Sequence[Lane]) -> bool:
    """Whether one process drives several devices and talks among these alone, as far as its collectives tell."""
    others = any((lane.collectives["ranks"] > len(lanes)).any() for lane in lanes)
    return len(lanes) > 1 and len({lane.rank for lane in lanes}) == 1 and not others


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
    return Lane(rank, device, windows, counted, str(counted["source"][0]), sets, own, events)
