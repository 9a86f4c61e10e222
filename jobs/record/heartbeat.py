"""Signs of life of a rank: one small file whose time of change says when the rank last moved.

Its first line is where the rank stands (`model`, `step 17`); in the step loop a second one is JSON for
`nightsweep watch`: {"step", "steps", "t_ns", "step_ms": mean since the last sign, or null}. Beside it, in
rankR.phases.jsonl, is when each phase of the rank began (jobs/record/phases.py).
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from ..host import clock
from .folder import RunFolder

CONTROL = ("none", "sampler", "idle", "capturing")
"""Blocks of steps of the control."""
MIN_INTERVAL_S = 1.0  # a shared file system must not feel the step loop


def place(run_folder: RunFolder, rank: int) -> str:
    """Where the rank stood by its last sign of life; empty where it gave none."""
    path = run_folder.rank_file(rank, "heartbeat")
    return path.read_text().partition("\n")[0].strip() if path.exists() else ""


class Heartbeat:
    """`beat` at every phase, `step` at every step; at most one write a second of the latter."""

    def __init__(self, path: Path) -> None:
        self.path, self.last = path, 0.0
        self.phase = "start"
        self.reported: tuple[int, int] | None = None
        self.beat("start")

    def beat(self, phase: str) -> None:
        self.last = time.monotonic()
        self.path.write_text(phase + "\n")

    def enter(self, name: str) -> None:
        """A phase of the rank begins: one of PHASES in jobs/record/phases.py, or a block of steps (jobs/point/plan.py),
        of which those of the control are one phase."""
        phase = "control" if name in CONTROL else name
        if phase == self.phase:
            return
        self.phase = phase
        line = json.dumps({"phase": phase, "start_ns": clock.now_ns()})
        with self.path.with_suffix(".phases.jsonl").open("a") as sink:
            sink.write(line + "\n")

    def follow_compiler(self, module: ModuleType) -> None:
        """Let torch.compile be a phase wherever it compiles. `module`: torch._dynamo.callback, which not every version
        of PyTorch has alike."""
        interrupted: list[str] = []

        def begin(*_: Any) -> None:
            interrupted.append(self.phase)
            self.enter("compile")

        def end(*_: Any) -> None:
            before = interrupted.pop()
            if self.phase == "compile":
                self.enter(before)

        module.callback_handler.register_start_callback(begin)
        module.callback_handler.register_end_callback(end)

    def pulse(self) -> None:
        """Within a phase that takes long: where the rank stood last still holds, and it moves."""
        if time.monotonic() - self.last >= MIN_INTERVAL_S:
            self.last = time.monotonic()
            self.path.touch()

    def step(self, number: int, steps: int) -> None:
        """The start of step `number` of `steps`."""
        if time.monotonic() - self.last < MIN_INTERVAL_S:
            return
        now = clock.now_ns()
        mean = None
        if self.reported and number > self.reported[0]:
            mean = (now - self.reported[1]) / (number - self.reported[0]) / 1e6
        self.reported = number, now
        content = {"step": number, "steps": steps, "t_ns": now, "step_ms": mean}
        self.beat(f"step {number}\n{json.dumps(content)}")
