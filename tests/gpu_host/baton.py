"""Two ranks that are alive at the same time take turns on one GPU, some steps each, so that what changes with time,
such as how fast a virtual machine's cores are, meets both alike.

A rank whose run folder lies beside the pipes of a pair hands the GPU over after each slice of its timed steps, idle,
and waits for its next turn. All else is as in any rank.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import psutil

from nightsweep.jobs.hook.imports import after_import

SIDES = ("new", "forked")
FILE = "slices.json"


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """turns.json of a pair: which side begins, how many steps a slice has, and how many of them come before what
    counts: a queue is full or a pipeline empty when a turn begins. `core`: that both ranks run on, and
    `loader_core`: their loader's workers; None: any."""

    first: str
    steps: int
    lead: int
    core: int | None = None
    loader_core: int | None = None


def prepare(pair: Path, turns: Turns) -> None:
    """Lay turns and pipes into the folder of a pair."""
    pair.mkdir(parents=True)
    (pair / "turns.json").write_bytes(msgspec.json.encode(turns))
    for side in SIDES:
        os.mkfifo(pair / side_pipe(side))


def side_pipe(side: str) -> str:
    return f"to-{side}"


@dataclass
class Baton:
    """One side's end. `leading`: the first step of this slice that counts; `slices`: it and the last one, of each."""

    turns: Turns
    mine: int
    other: int
    begins: bool
    taken: int = 0
    leading: Any = None
    slices: list[tuple[Any, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, run_folder: Path) -> Baton | None:
        """That of a rank with this run folder, PAIR/SIDE/timed; None where there is no pair."""
        pair, side = run_folder.parents[1], run_folder.parent.name
        if side not in SIDES or not (pair / "turns.json").exists():
            return None
        turns = msgspec.json.decode((pair / "turns.json").read_bytes(), type=Turns)
        mine, other = (
            os.open(pair / side_pipe(name), os.O_RDWR) for name in sorted(SIDES, key=lambda name: name != side)
        )
        return cls(turns, mine, other, turns.first == side)

    def take(self) -> None:
        """Wait for the turn; before the first one, until both sides have come."""
        if self.taken == 0:
            self.hand_over()
            os.read(self.mine, 1)
        if self.taken or not self.begins:
            os.read(self.mine, 1)
        self.taken += 1

    def hand_over(self) -> None:
        os.write(self.other, b".")


def settle_on_cores(turns: Turns) -> None:
    """All threads of this rank on one core, those of its children on another."""
    rank = psutil.Process()
    for core, processes in ((turns.core, [rank]), (turns.loader_core, rank.children(recursive=True))):
        for thread in (thread for process in processes for thread in process.threads()):
            if core is not None:
                os.sched_setaffinity(thread.id, {core})


def install() -> None:
    """In a rank, or in what ranks are forked from: as soon as the step loop is imported."""
    after_import({"nightsweep.jobs.rank.loop": take_turns})


def take_turns(module: ModuleType) -> None:
    """Let timed steps be run in turns. The time of a step in each slice, ms, is written when the steps are over."""
    loop: Any = module.Loop
    one_step, run = loop.one_step, loop.run

    def step_in_turn(self: Any, step: Any) -> Any:
        baton = self.baton
        if baton is None:
            return one_step(self, step)
        if step.phase != "timed":
            step = one_step(self, step)
            if step.number == 0:  # when all threads and workers are there
                settle_on_cores(baton.turns)
            return step
        place = (step.number - self.point.warmup_steps) % baton.turns.steps
        if place == 0:
            baton.take()
        step = one_step(self, step)
        if place == baton.turns.lead:
            baton.leading = step
        if place == baton.turns.steps - 1:
            module.synchronize(self.device)
            baton.slices.append((baton.leading, step))
            baton.hand_over()
        return step

    def run_in_turns(self: Any, run_folder: Any, plan: Any) -> Any:
        self.baton = Baton.of(run_folder.path)
        found = run(self, run_folder, plan)
        if self.baton is not None:
            (run_folder.path / FILE).write_text(json.dumps(list(times(self.baton))))
        return found

    loop.one_step, loop.run = step_in_turn, run_in_turns


def times(baton: Baton) -> Iterator[float]:
    """Milliseconds of a step that counts, of each slice: by the device's clock, or on a CPU by the host's."""
    number = baton.turns.steps - baton.turns.lead
    for first, last in baton.slices:
        if first.events:
            yield first.events[0].elapsed_time(last.events[1]) / number
        else:
            yield (last.end_ns - first.start_ns) / 1e6 / number
