"""What is known of a run, and what is not: its traces' lanes, its counters, its record. Rules ask nothing else.

Amounts are arrays of shape (lanes, steps), ns. A share is their mean over the mean time of a step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nightsweep.analysis.diagnosis.cause import Share, replayed
from nightsweep.analysis.diagnosis.evidence.kernel_savings import lane_savings
from nightsweep.analysis.diagnosis.evidence.lane import Lane, is_one_process
from nightsweep.analysis.diagnosis.evidence.recorded import Recorded
from nightsweep.analysis.diagnosis.replay.build import build
from nightsweep.analysis.diagnosis.replay.changes import with_messages, without_tracer
from nightsweep.analysis.diagnosis.replay.edit import on_rank
from nightsweep.analysis.diagnosis.replay.graph import Ints
from nightsweep.analysis.diagnosis.replay.pauses import release_ns, without_release
from nightsweep.analysis.diagnosis.replay.what_if import Change, WhatIf
from nightsweep.analysis.diagnosis.thresholds import NOISE, STRAGGLER, TRACER
from nightsweep.analysis.metrics.intervals import Intervals
from nightsweep.analysis.metrics.steps import loader
from nightsweep.analysis.tables.column import empty
from nightsweep.analysis.tables.part_names import PARTS
from nightsweep.analysis.tables.traces import TRACE_TABLES

Floats = npt.NDArray[np.float64]
TOLD_BY_LENGTH_NS = 5e6
"""Shorter pauses are lost among what steps differ by anyway, some milliseconds where images are loaded; assumed."""
GONE = 0.01
"""A kernel of which less than so much is left is not launched."""


@dataclass(frozen=True)
class Evidence(Recorded):
    """`lanes`: one a device of each rank that was traced; of many ranks, of those that `rank_choice` takes.
    `cpu_parts`: step_parts of a trace that has no lanes. `traced`: ranks that have a trace. `absent`: what is missing,
    with the reason."""

    lanes: tuple[Lane, ...] = ()
    cpu_parts: pl.DataFrame = field(default_factory=lambda: empty(TRACE_TABLES["step_parts"]))
    traced: Sequence[int] = ()
    absent: Mapping[str, str] = field(default_factory=dict)

    def of_lanes(self, amount: Callable[[Lane], Any]) -> Floats:
        """An amount of each lane and step (lanes, steps): of as many steps as all lanes have."""
        count = min((lane.steps.height for lane in self.lanes), default=0)
        rows = [np.asarray(amount(lane), dtype=np.float64)[:count] for lane in self.lanes]
        return np.vstack(rows) if rows else np.empty((0, 0))

    def length(self, covered: Callable[[Lane], Intervals]) -> Floats:
        """Lengths of a set of time of each lane (lanes, steps), ns."""
        return self.of_lanes(lambda lane: lane.lengths(covered(lane)))

    def part(self, name: str) -> Floats:
        return self.length(lambda lane: lane.sets[name])

    def part_ms(self, *names: str, rank: int | None = None) -> float:
        """These parts together, ms a step, of this rank, or in the mean."""
        own = [rank in (None, lane.rank) for lane in self.lanes]
        return float(np.sum([self.part(name) for name in names], axis=0)[own].mean()) / 1e6

    @functools.cached_property
    def periods(self) -> Floats:
        """Times of steps, from start to start (lanes, steps), ns."""
        return self.of_lanes(lambda lane: lane.periods)

    @property
    def traced_lengths(self) -> Floats:
        """Times of the traced steps of the slowest lane, from start to start, ns; there must be one."""
        return np.asarray(self.periods[self.periods.mean(axis=1).argmax()])

    @functools.cached_property
    def what_if(self) -> WhatIf:
        """The traced steps, to be changed, without what the tracer adds: as long as steps are without it where that was
        measured, but for waits for batches that the trace does not see; else less `tracer` a call."""
        events = {lane.rank: lane.events for lane in self.lanes}
        windows = pl.concat([lane.windows for lane in self.lanes])
        traced = WhatIf(build(events, windows, loader_holds_gil=self.loader_holds_gil))
        if self.timed_ns is None:
            return WhatIf(without_tracer(traced.graph, TRACER.value))
        waits = self.unseen
        return traced.untraced(self.timed_ns if waits.rank is None else waits.mean_ns - waits.longer[waits.rank])

    def gain(self, *made: Change, then: Change | None = None) -> Share:
        """The share of the step that these changes give back; with `then`, what that one gives on top of the rest. The
        interval is the error of replaying (`replay_error`)."""
        gained = self.what_if.gain(*made, then=then) * self.what_if.step_ns / self.step_ns if self.lanes else 0.0
        return replayed(gained)

    def rank_of(self, change: Change) -> int | None:
        """The rank on which alone a change gives most of what it gives everywhere; None where that is none, or any."""
        whole, ranks = self.gain(change).value, sorted({lane.rank for lane in self.lanes})
        if whole < NOISE.value or len(ranks) < 2:
            return None
        alone = {rank: self.gain(on_rank(change, rank)).value for rank in ranks}
        most = max(ranks, key=lambda rank: alone[rank])
        return most if alone[most] >= STRAGGLER.value * whole else None

    @functools.cached_property
    def step_ns(self) -> float:
        """The time that shares are of: of a step without the tracer where that was measured and is shorter, else of the
        trace's and what that did not see of waiting for batches, of long steps and of stalls. Without a trace the mean
        timed step."""
        traced = self.what_if.step_ns if self.lanes else math.nan
        if traced == 0:  # as where all calls of a damaged trace come at one moment
            traced = float(self.periods.mean())
        unseen = self.unseen_wait + self.unseen_pauses + self.unseen_stalls
        if unseen:  # the mean may have an epoch's end in it
            return min(self.unseen.mean_ns, traced + unseen)
        return self.unseen.mean_ns if self.timed_ns is not None and math.isnan(traced) else traced

    @functools.cached_property
    def without_compute(self) -> float:
        """The share of the step in which the device that computes least does not compute; 1 without a trace."""
        return 1 - float(self.part("compute").mean(axis=1).min()) / self.step_ns if self.periods.size else 1.0

    @property
    def left_out(self) -> float:
        """By which share of the mean timed step that is longer than the median one and than what shares are of: some
        steps take longer, and nothing tells why. A script may evaluate now and then, or have steps of several kinds."""
        mean = self.unseen.mean_ns
        return max(0.0, 1 - max(self.step_ns, self.timed_ns or 0.0) / mean) if mean and self.step_ns > 0 else 0.0

    @functools.cached_property
    def unseen_wait(self) -> float:
        """By how much the mean timed step is longer than a traced one for want of batches, ns."""
        return self.unseen.waits_ns(self.what_if.step_ns) if self.periods.size else 0.0

    @functools.cached_property
    def unseen_pauses(self) -> float:
        """By how much the mean timed step is longer than a traced one for steps that are long again and again, ns."""
        return self.unseen.pauses_ns() if self.periods.size else 0.0

    @functools.cached_property
    def traced_stalls(self) -> float:
        """What freeing pinned batches adds to a traced step, ns, as far as pauses in the trace tell."""
        return self.what_if.gain(without_release) * self.what_if.step_ns if self.lanes else 0.0

    @functools.cached_property
    def timed_stalls(self) -> float:
        """What it adds to the mean timed step, ns, as far as lengths of steps tell; else to a traced one."""
        lasts = release_ns(self.what_if.graph) if self.lanes else None
        known = None if lasts is None or lasts[0] < TOLD_BY_LENGTH_NS else self.unseen.stalls_ns(*lasts)
        return self.traced_stalls if known is None else known

    @property
    def unseen_stalls(self) -> float:
        """What of that the trace does not see, ns."""
        unseen = self.timed_stalls - self.traced_stalls
        return unseen if unseen >= NOISE.value * self.unseen.mean_ns else 0.0

    def share(self, amount: Floats) -> Share:
        """The share of an amount (lanes, steps), with the same error as what is replayed: how far off the method is
        counts, not how far steps of one run differ."""
        if not amount.size:
            return Share()
        return replayed(min(1.0, float(amount.mean()) / self.step_ns))

    @functools.cached_property
    def savings(self) -> list[pl.DataFrame]:
        """What each kernel of each lane could save (analysis/diagnosis/evidence/kernel_savings.py)."""
        return [
            lane_savings(
                lane, self.of_device(lane, "name"), self.passes, compiled=self.compiled, recomputed=self.recomputed
            )
            for lane in self.lanes
        ]

    @property
    def launched_beside(self) -> float:
        """The share of the kernels of forward passes and of a script's own lines that is launched outside of its model;
        0 where no ranges tell."""
        known = pl.concat(self.savings)["beside"].drop_nulls().to_numpy()
        return float(known.mean()) if len(known) else 0.0

    def saved(self, kind: str) -> Floats:
        """What kernels could save of this kind (lanes, steps), ns."""
        own = dict(zip(map(id, self.lanes), self.savings, strict=True))
        return self.of_lanes(lambda lane: lane.summed(own[id(lane)]["start_ns"], own[id(lane)][kind]))

    def faster(self, kind: str) -> Change:
        """Kernels take as long as without what they could save of this kind; those of which nothing is left are not
        launched."""
        gone = (pl.col(kind) > 0) & (pl.col(kind) >= (1 - GONE) * pl.col("took"))
        return self.scaled(
            own.with_columns(factor=1 - pl.col(kind) / pl.col("took"), kept=pl.when(gone).then(0.0).otherwise(1.0))
            for own in self.savings
        )

    def removed(self, works: Iterable[pl.DataFrame]) -> Change:
        """This work is not done, nor launched. `works`: as for `scaled`, without its last two columns."""
        return self.scaled(own.with_columns(factor=pl.lit(0.0), kept=pl.lit(0.0)) for own in works)

    def scaled(self, works: Iterable[pl.DataFrame]) -> Change:
        """A change of work. `works`: of each lane, rows of device, stream and start_ns with `factor`, of the time that
        each of them takes, and `kept`, the share of them that is still launched."""
        work = self.what_if.graph.work
        factor, kept = np.ones(len(work.start)), np.ones(len(work.start))
        for lane, own in zip(self.lanes, works, strict=True):
            for (device, stream), rows in own.partition_by("device", "stream", as_dict=True).items():
                of_stream = self._streams.get((lane.rank, device, stream))
                if of_stream is None:
                    continue
                begins, first = np.unique(rows["start_ns"].to_numpy(), return_index=True)
                place = np.searchsorted(begins, work.start[of_stream]).clip(max=len(begins) - 1)
                same = begins[place] == work.start[of_stream]
                for column, name in ((factor, "factor"), (kept, "kept")):
                    values = rows[name].cast(pl.Float64).fill_null(1.0).to_numpy()
                    column[of_stream[same]] = values[first[place[same]]]
        return lambda graph: with_messages(graph, np.maximum(factor, 0.0), kept)

    @functools.cached_property
    def _streams(self) -> dict[tuple[int | None, ...], Ints]:
        """The places of the graph's work by rank, device and stream, where these are known."""
        work = self.what_if.graph.work
        firsts = np.unique(work.lane, return_index=True)[1]
        keys = work.frame.select("rank", "device", "stream")[firsts].rows()
        return {key: np.flatnonzero(work.lane == lane) for lane, key in enumerate(keys) if None not in key}

    @property
    def loader_holds_gil(self) -> bool:
        """Whether a loader's thread is known to hold the GIL while it frees pinned batches: they come from worker
        processes, by `workers` or by the ranges of PyTorch's DataLoader, and `release_unlocked` is not set."""
        ranges = pl.concat([lane.events["nvtx"]["name"].cast(pl.String) for lane in self.lanes])
        known = bool(self.workers) or (self.workers is None and bool(ranges.str.contains(loader.WITH_WORKERS).any()))
        return known and not self.setting("release_unlocked")

    @functools.cached_property
    def heard(self) -> bool:
        """Whether all ranks that talk to each other have a trace."""
        return is_one_process(self.lanes) or all(lane.heard for lane in self.lanes)

    def of_device(self, lane: Lane, column: str) -> str | None:
        """What the table `devices` says of the lane's, such as its `name`."""
        own = self.devices.filter(pl.col("rank") == lane.rank, pl.col("device").eq_missing(lane.device))
        return own[column][0] if own.height else None

    @functools.cached_property
    def parts(self) -> dict[str, float]:
        """Mean of each part over lanes (of CPUs: ranks) and steps, ms; they add up to the mean period. Empty without a
        trace."""
        if self.periods.size:
            return {name: float(self.part(name).mean()) / 1e6 for name in PARTS}
        known = dict(self.cpu_parts.group_by("part").agg(pl.col("duration_ns").mean()).iter_rows())
        return {name: known[name] / 1e6 for name in PARTS if name in known}

    @property
    def traced_ranks(self) -> list[int]:
        """Ranks of which traced steps count."""
        return sorted({lane.rank for lane in self.lanes} | set(self.cpu_parts["rank"]))

    @property
    def traced_count(self) -> int:
        """How many traced steps count."""
        return int(self.periods.shape[1]) if self.periods.size else self.cpu_parts["step"].n_unique()
