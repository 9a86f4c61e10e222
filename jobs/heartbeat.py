"""Signs of life of a rank: one small file whose time of change says when the rank last moved."""

from __future__ import annotations

import time
from pathlib import Path

MIN_INTERVAL_S = 1.0  # a shared file system must not feel the step loop


class Heartbeat:
    """`beat` at every phase and step; at most one write a second."""

    def __init__(self, path: Path) -> None:
        self.path, self.last = path, 0.0
        self.beat("start", force=True)

    def beat(self, phase: str, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now - self.last >= MIN_INTERVAL_S:
            self.last = now
            self.path.write_text(phase + "\n")
