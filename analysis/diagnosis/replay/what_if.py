"""A run, and how long its steps would take if something were changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from nightsweep.analysis.diagnosis.replay import changes, edit
from nightsweep.analysis.diagnosis.replay.graph import Graph, Mask
from nightsweep.analysis.diagnosis.replay.periods import periods
from nightsweep.analysis.diagnosis.replay.times import replay
from nightsweep.analysis.diagnosis.thresholds import TRACER

Change = Callable[[Graph], Graph]
MOST_TRACER_NS = 10_000
"""A tracer adds 3 to 6 us to a call (H200s, nsys: launch-bound jobs of tests/data/labelled with and without it), and
the PyTorch profiler so much to each operator, too."""
SAME = 0.99
"""A step this much of another is as long: a replay is right to within half a percent."""
_ROUNDS = 12


@dataclass(frozen=True)
class WhatIf:
    """`graph`: the run. Times are means over devices and steps that count, ns; those that were asked for are kept."""

    graph: Graph
    _known: dict[tuple[Change, ...], float] = field(default_factory=dict)

    @functools.cached_property
    def step_ns(self) -> float:
        return self.after()

    def after(self, *made: Change) -> float:
        """The time of a step after these changes, one after the other."""
        if made not in self._known:
            graph = edit.compose(*made)(self.graph)
            if made and graph is self.graph:
                return self.step_ns
            found = [own for own in periods(graph, replay(graph)) if len(own)]
            self._known[made] = float(np.mean([own.mean() for own in found])) if found else np.nan
        return self._known[made]

    def gain(self, *made: Change, then: Change | None = None) -> float:
        """The share of the step that changes give back, 0 to 1; with `then`, what this one gives on top of the rest."""
        if not self.step_ns > 0:
            return 0.0
        before, made = (self.after(*made), (*made, then)) if then else (self.step_ns, made)
        return max(0.0, before - self.after(*made)) / self.step_ns

    def calls_a_step(self, chosen: Mask, rank: int | None = None) -> tuple[float, float]:
        """How many of these calls there are, and how long they take, ns: a step, of this rank, or in the mean."""
        calls, counted = self.graph.calls, chosen & self.graph.calls_of_steps
        if rank is not None:
            counted = counted & (calls.rank == rank)
        steps = self.graph.rank_steps(rank)
        return float(counted.sum()) / steps, float((calls.end - calls.start)[counted].sum()) / steps

    def untraced(self, step_ns: float) -> WhatIf:
        """The run without what a tracer adds to each call and operator, so much that a step takes as long as it did
        without one. Where that was no shorter, the device hides what the tracer adds: then `tracer` is taken out, or as
        much of it as leaves the step as long. Where even the most does not make it so short, something else made the
        traced steps longer."""
        least, most, wanted = 0.0, float(MOST_TRACER_NS), step_ns
        if not step_ns < self.step_ns:
            most, wanted = TRACER.value, SAME * self.step_ns
            usual = WhatIf(changes.without_tracer(self.graph, most))
            if usual.step_ns >= wanted:
                return usual
        for _ in range(_ROUNDS):
            middle = (least + most) / 2
            longer = WhatIf(changes.without_tracer(self.graph, middle)).step_ns > wanted
            least, most = (middle, most) if longer else (least, middle)
        return WhatIf(changes.without_tracer(self.graph, most))
