"""A data-parallel run over other numbers of ranks: its traced steps replayed as they would be there.

Each rank keeps its batch (weak scaling), its GPU and its link. On m ranks in place of n

- a ring sends (m-1)/m in place of (n-1)/n of each message, once or twice (nccl-tests, doc/PERFORMANCE.md). How much of
  that a higher rate makes up for is not in the trace: all of it and nothing are the ends of the interval, and the value
  is their geometric mean;
- kernels that messages slow down are slowed for as much longer;
- a step lasts as long as the longest of its ranks' steps: if one of n ranks takes less than t with probability F(t),
  one of m ranks does with F(t)^(m/n), as of ranks that are independent. F is that of the timed steps (of the traced
  ones, where no others are known), and so ends at the longest of them; steps that are long again and again, evenly
  apart, are taken to be so on any number. Twice as much longer, and no longer, are the ends of the interval;
- ranks that share the optimizer's work have n/m of it.

Where copies of a model that is sharded average their gradients (HSDP), more ranks are more copies: only their
all-reduces grow, and a rank has as much of the optimizer's work.

On one rank nothing is sent or copied to a message, and no step is longer than its own; of traces alone, as the replay
has it. What a strategy costs the host stays in all of them, and that more GPUs at work may lower their clocks or keep
the host's cores and memory busy is not foreseen. Lengths are those of the timed steps; what messages and the optimizer
change is from the replay.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.causes import communication
from nightsweep.analysis.diagnosis.evidence import messages
from nightsweep.analysis.diagnosis.evidence.contention import slowdowns
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.replay import changes, rank_changes
from nightsweep.analysis.diagnosis.replay.edit import compose
from nightsweep.analysis.diagnosis.replay.graph import Floats
from nightsweep.analysis.diagnosis.replay.what_if import Change
from nightsweep.analysis.diagnosis.thresholds import NOISE
from nightsweep.jobs.point.strategies import SCALING

PACKING = r"split_with_sizes_copy|chunk_cat|multi_tensor_apply.*::Copy<"
"""Kernels by which FSDP2 copies weights and gradients to and from its messages (torch 2.11)."""
RING = ("all_reduce", "all_gather", "reduce_scatter")
"""Collectives of which a rank sends more, the more ranks there are."""


@dataclass(frozen=True)
class Step:
    """The time of a step on a number of ranks, ms. Where it was predicted, `low` and `high` are its interval, which
    includes the noise between starts."""

    ranks: int
    ms: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class OverRanks:
    """`measured`: the run's own number of ranks, the mean of its steps; `alone`: its step on one rank; `predicted`: on
    others. `lost`: by what the run's own step is longer than on one rank, ms; below 0: what it gains there, since ranks
    share the optimizer's work."""

    measured: Step
    alone: Step
    predicted: tuple[Step, ...]
    lost: dict[str, float]

    def efficiency(self, step: Step) -> float:
        """Of weak scaling from one rank."""
        return self.alone.ms / step.ms

    def as_json(self) -> dict[str, Any]:
        steps = (self.alone, self.measured, *self.predicted)
        return {
            "steps": [dataclasses.asdict(step) | {"efficiency": self.efficiency(step)} for step in steps],
            "lost_ms": self.lost,
        }

    def screen(self) -> str:
        """As a person reads it."""
        lines = ["over more ranks, each with its batch, GPU and link as here", "  ranks    step (ms)  efficiency"]
        for step in sorted((self.alone, self.measured, *self.predicted), key=lambda step: step.ranks):
            what = " (this run)" if step is self.measured else ""
            if step.low is not None and step.high is not None:
                ends = self.alone.ms / step.high, self.alone.ms / step.low
                what = f" ({step.low:.3f} to {step.high:.3f} ms, {ends[0]:.1%} to {ends[1]:.1%})"
            lines.append(f"  {step.ranks:>5}{step.ms:>13.3f}{self.efficiency(step):>12.1%}{what}")
        lines.append(f"of the {self.measured.ms - self.alone.ms:.3f} ms more than on one rank")
        shown = {name: ms for name, ms in self.lost.items() if abs(ms) >= 0.0005}
        return "\n".join([*lines, *(f"  {name:<30}{ms:>10.3f}" for name, ms in shown.items())]) + "\n"


def predict(e: Evidence, ranks: Sequence[int]) -> OverRanks:
    """The run on these numbers of ranks. Raises ValueError, in one line, where its trace does not tell."""
    groups, lengths = _groups(e), _lengths_ms(e)
    own = groups.ranks
    if odd := [number for number in ranks if number * groups.growing % own]:
        raise ValueError(f"expected a multiple of {groups.sharers} ranks, which share a copy of a model, not {odd[0]}")
    silent = compose(e.scaled(slowdowns(e.lanes)), changes.without_communication)
    copying = pl.col("name").cast(pl.String).str.contains(PACKING)
    packing = e.removed(lane.own["kernels"].filter(copying & _shares_gradients(e)) for lane in e.lanes)
    single = (silent, packing, _optimizer(e, groups.sharers))
    names = ("transfer that nothing hides", "kernels slowed beside it", "copies to and from messages",
             "the optimizer's work")  # fmt: skip
    made = [(), (changes.without_communication,), *(single[: n + 1] for n in range(len(single)))]
    times = [e.what_if.after(*changed) / 1e6 for changed in made]
    lost = {name: before - after for name, (before, after) in zip(names, itertools.pairwise(times), strict=True)}
    slowed = lost["kernels slowed beside it"] * _part(e, groups.kinds)

    def on(number: int, share: float, times_longer: float) -> float:
        """The step, ms: messages grow with this share; what uneven steps add is multiplied by `times_longer`."""
        grown = groups.growing * number // own
        # how many times as long a message takes, if the rate makes up for all but this share of what more is sent (as a
        # power)
        growth = math.pow((1 - 1 / grown) / (1 - 1 / groups.growing), share)
        shared = _optimizer(e, own / number if groups.sharers == own else 1)
        replayed = e.what_if.after(_messages(e, growth, groups.kinds), shared) / 1e6 - times[0]
        uneven = lengths.mean_ms + times_longer * (lengths.on(number / own) - lengths.mean_ms)
        return max(uneven, lengths.shortest_ms) + replayed + (growth - 1) * slowed

    predicted = []
    for number in dict.fromkeys(ranks):
        ends = sorted(on(number, end, 2 * end) for end in (0.0, 1.0))
        predicted.append(Step(number, on(number, 0.5, 1.0), ends[0] * (1 - NOISE.value), ends[1] * (1 + NOISE.value)))
    lost["uneven steps"] = lengths.mean_ms - lengths.on(1 / own)
    if e.unseen.slowest_ms.is_empty():  # a few steps under a profiler do not tell how uneven steps are
        lost["uneven steps"] = times[-1] - e.what_if.after(*single, rank_changes.without_others) / 1e6
    alone = lengths.mean_ms - sum(lost.values())
    return OverRanks(Step(own, lengths.mean_ms), Step(1, alone), tuple(predicted), lost)


@dataclass(frozen=True)
class Lengths:
    """Lengths of steps, ms: of those that differ by chance, and what others add to the mean of all."""

    by_chance: Floats
    added: float

    @property
    def mean_ms(self) -> float:
        return float(self.by_chance.mean()) + self.added

    @property
    def shortest_ms(self) -> float:
        return float(self.by_chance.min()) + self.added

    def on(self, ratio: float) -> float:
        """The expected step of `ratio` times as many ranks."""
        below = np.linspace(0, 1, len(self.by_chance) + 1) ** ratio
        return float(np.sort(self.by_chance) @ np.diff(below)) + self.added


def _lengths_ms(e: Evidence) -> Lengths:
    """The run's timed steps; its traced ones, as long as without the tracer, where no others are known."""
    if e.unseen.slowest_ms.is_empty():
        traced = e.traced_lengths
        return Lengths(traced * (e.what_if.step_ns / traced.mean() / 1e6), 0.0)
    usual = e.unseen.usual_ms.to_numpy()
    return Lengths(usual, e.unseen.mean_ns / 1e6 - float(usual.mean()))


def _messages(e: Evidence, growth: float, kinds: Sequence[str]) -> Change:
    """Collectives of these kinds take `growth` times as long."""
    sent = (messages.calls(lane).filter(pl.col("collective").is_in(kinds)) for lane in e.lanes)
    return e.scaled(calls.with_columns(factor=pl.lit(growth), kept=pl.lit(1.0)) for calls in sent)


def _part(e: Evidence, kinds: Sequence[str]) -> float:
    """The share of the bytes of ring collectives that those of these kinds send; 1 where sizes are not known."""
    sent = pl.concat([messages.calls(lane).filter(pl.col("collective").is_in(RING)) for lane in e.lanes])
    part, whole = (float(rows["on_bus"].sum()) for rows in (sent.filter(pl.col("collective").is_in(kinds)), sent))
    return part / whole if whole else 1.0


def _optimizer(e: Evidence, times: float) -> Change:
    """The optimizer of a rank has `times` its work, if the ranks share it."""
    factor = pl.lit(times if _shares_gradients(e) else 1.0)
    kernels = (lane.own["kernels"].filter(pl.col("category").cast(pl.String) == "optimizer") for lane in e.lanes)
    return e.scaled(own.with_columns(factor=factor, kept=pl.lit(1.0)) for own in kernels)


def _shares_gradients(e: Evidence) -> bool:
    """Whether gradients are scattered, so that each rank has its part of them and of the optimizer."""
    return any((messages.calls(lane)["collective"] == "reduce_scatter").any() for lane in e.lanes)


@dataclass(frozen=True)
class Groups:
    """`ranks`: of the run; `kinds`: of collectives that grow with more ranks, and `growing`, among how many ranks they
    are; `sharers`: ranks that share the optimizer's work, if any do."""

    ranks: int
    kinds: Sequence[str]
    growing: int
    sharers: int


def _groups(e: Evidence) -> Groups:
    if not communication.communicates(e):
        raise ValueError("expected a trace of every rank, and messages between them")
    strategy, copies = e.setting("strategy"), e.setting("replicas") or 1
    if strategy == "local_sgd":
        raise ValueError("expected ranks that meet in each step; not local_sgd")
    if strategy is not None and (strategy not in SCALING or (e.setting("tensor_parallel") or 1) > 1):
        raise ValueError(f"expected ranks that each train on their own batch; not {strategy}")
    if messages.is_pipeline(e):
        raise ValueError("expected ranks that each train on their own batch; not stages of a pipeline")
    own = pl.concat([messages.calls(lane).select(n=pl.coalesce("ranks", "matched_ranks")) for lane in e.lanes])
    counts = own.filter(pl.col("n") > 1)["n"].unique().sort().to_list()
    if e.point is not None and copies > 1:
        return Groups(e.point.world_size, ("all_reduce",), copies, e.point.world_size // copies)
    if len(counts) != 1 or len({lane.rank for lane in e.lanes}) > counts[0]:
        raise ValueError(f"expected messages among all ranks, found some among {counts}")
    return Groups(counts[0], RING, counts[0], counts[0])
