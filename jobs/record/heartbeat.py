"""Signs of life of a rank: one small file whose time of change says when the rank last moved.

Its first line is where the rank stands (`model`, `step 17`); in the step loop a second one is JSON for
`nightsweep watch`: {"step", "steps", "t_ns", "step_ms": mean since the last sign, or null}.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

MIN_INTERVAL_S = 1.0  # a shared file system must not feel the step loop


def place(text: str) -> str:
    """Where the rank stood, from its file's content."""
    return text.partition("\n")[0].strip()


class Heartbeat:
    """`beat` at every phase, `step` at every step; at most one write a second of the latter."""

    def __init__(self, path: Path) -> None:
        self.path, self.last = path, 0.0
        self.reported: tuple[int, int] | None = None
        self.beat("start")

    def beat(self, phase: str) -> None:
        self.last = time.monotonic()
        self.path.write_text(phase + "\n")

    def pulse(self) -> None:
        """Within a phase that takes long: where the rank stood last still holds, and it moves."""
        if time.monotonic() - self.last >= MIN_INTERVAL_S:
            self.last = time.monotonic()
            self.path.touch()

    def step(self, number: int, steps: int) -> None:
        """The start of step `number` of `steps`."""
        if time.monotonic() - self.last < MIN_INTERVAL_S:
            return
        now = time.time_ns()
        mean = None
        if self.reported and number > self.reported[0]:
            mean = (now - self.reported[1]) / (number - self.reported[0]) / 1e6
        self.reported = number, now
        content = {"step": number, "steps": steps, "t_ns": now, "step_ms": mean}
        self.beat(f"step {number}\n{json.dumps(content)}")
