"""One step of a script."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Step:
    """One step of the script as the host saw it. `events`: on the device, at its ends. `losses`: what backward passes
    began with, still on the device."""

    number: int
    phase: str
    block: int
    start_ns: int
    mono_ns: int
    end_ns: int = 0
    data_ns: int = 0
    samples: int = 0
    tokens: int = 0
    losses: list[Any] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    memory: dict[str, int] | None = None
