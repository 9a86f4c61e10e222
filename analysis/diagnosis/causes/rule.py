"""A rule: a function of the evidence that finds one kind of cause, and when it is asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nightsweep.analysis.diagnosis.cause import Cause
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence

HOST, MESSAGES, LAUNCHES, OTHERS, DEVICE = range(5)
"""What counts first where two causes give back the same time: what the host waits for or does, then what it launches
for small messages, then that it launches slowly at all, then what other ranks and jobs make it wait for, each the
largest first; then what the devices could compute faster."""


@dataclass(frozen=True)
class Rule:
    """One kind of cause.

    Attributes:
        find: gives the causes that it finds; its name is the kind, its module the category, and its docstring says in
            docs/diagnosis.md what it looks for and how the share is computed.
        turn: HOST, MESSAGES, LAUNCHES, OTHERS or DEVICE.
        traced: whether it needs a trace of a GPU.
        remark: whether a cause is reported even where its share is 0.
        below, above: how many times as far as the cause says its interval reaches on each side, by how far off
            predictions of its kind were for fixes that were measured (docs/diagnosis-accuracy.md).
        leaves_compute: whether its remedy leaves what all devices compute as it is, or all but the slowest, so that it
            gives no more than the time in which the device that computes least does not.
    """

    find: Callable[[Evidence], Iterator[Cause]]
    turn: int
    traced: bool = True
    remark: bool = False
    below: float = 1.0
    above: float = 1.0
    leaves_compute: bool = False

    @property
    def kind(self) -> str:
        return self.find.__name__

    @property
    def cause(self) -> str:
        return self.find.__module__.rpartition(".")[2]

    @property
    def text(self) -> str:
        return " ".join((self.find.__doc__ or "").split())

    def causes(self, e: Evidence) -> list[Cause]:
        """What it finds, under its own name."""
        if self.traced and not e.lanes:
            return []
        most = e.without_compute if self.leaves_compute else 1.0
        return [
            dataclasses.replace(
                cause, gain=cause.gain.within(self.below, self.above).at_most(most), cause=self.cause, kind=self.kind
            )
            for cause in self.find(e)
        ]
