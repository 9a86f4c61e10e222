"""What the ranks of a run do after their warm-up: blocks of steps, each under its own conditions.

The timed run is one block, the traced run one that is captured, by default after the timed one in the same start. The
runs of the control alternate: all blocks of a start run in the same processes, so that their ratio is of the condition
alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from nightsweep.jobs.point.point import Point

ALTERNATIONS = 8
"""Pairs of blocks, without and with the samplers, in one start of the control."""
CAPTURES = 3
"""Pairs of blocks, idle and capturing, in one start under Kineto."""
BLOCK_S = 0.5
"""How long a block lasts at least: several ticks of the samplers, yet short, for noise of the machine is slow."""

Phase = Literal["warmup", "timed", "traced", "none", "sampler", "idle", "capturing"]
"""none to capturing are conditions of the control: nothing watches; the samplers do; the tracer is there and does not
capture; it does."""


@dataclass(frozen=True)
class Block:
    """So many steps on end. `sampled`: the node's samplers run; `captured`: the tracer captures."""

    phase: Phase
    steps: int
    sampled: bool = True
    captured: bool = False


def is_one_start(point: Point) -> bool:
    """Whether the point's traced steps follow its timed ones in the same start."""
    return point.traced_steps > 0 and point.tracer == "auto"


def timed_blocks(point: Point) -> list[Block]:
    """Of the timed start: the timed steps, and the traced ones where they follow."""
    return [Block("timed", point.timed_steps), *(traced_blocks(point) if is_one_start(point) else [])]


def traced_blocks(point: Point) -> list[Block]:
    """The traced steps."""
    return [Block("traced", point.traced_steps, captured=True)]


def block_steps(point: Point, step_s: float) -> int:
    """Steps of a block of the control, for steps of this length."""
    return max(5, math.ceil(BLOCK_S / step_s)) if step_s > 0 else point.timed_steps


def control_plain(steps: int) -> list[Block]:
    """Blocks without and with the samplers, in turns that swap (ABBA), so that a drift falls on both alike."""
    none, sampler = Block("none", steps, sampled=False), Block("sampler", steps)
    return [block for turn in range(ALTERNATIONS) for block in ((none, sampler) if turn % 2 == 0 else (sampler, none))]


def control_tracer(point: Point, steps: int, tracer: str) -> list[Block]:
    """The tracer there but idle, then capturing; no samplers. nsys captures once a start, for a whole block; Kineto
    several times, for as few steps as a traced run has, because it holds every operator in memory."""
    idle = Block("idle", steps, sampled=False)
    if tracer == "nsys":
        return [idle] * ALTERNATIONS + [Block("capturing", steps * 2, sampled=False, captured=True)]
    return [idle, Block("capturing", max(2, point.traced_steps), sampled=False, captured=True)] * CAPTURES
