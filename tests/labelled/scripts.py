"""Reads scripts.yaml: scripts that are run as they are slow and with their fix, and the label of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nightsweep.jobs.point.check import reasons
from nightsweep.jobs.point.point import Point, complete

LIST = Path(__file__).with_name("scripts.yaml")
OWN = Path(__file__).with_name("scripts")
WARMUP = 12
"""In its first ten steps DDP times itself, and waits for the GPU in each forward pass."""
TRACED = 4


@dataclass(frozen=True, kw_only=True)
class ScriptRun:
    """One entry; see scripts.yaml for its fields."""

    name: str
    half: str
    code: str
    command: str
    kinds: list[str]
    ranks: int = 1
    rank: int | None = None
    launcher: str | None = None
    void: str | None = None
    steps: int = 20
    slow: Mapping[str, Any] = field(default_factory=dict)
    fix: Mapping[str, Any] = field(default_factory=dict)
    tried: Mapping[str, Any] = field(default_factory=dict)

    def point(self, side: str, peers: Path, images: Path) -> Point:
        """The point of one side: slow, fix or tried. `peers`: where the repositories of others lie; `images`: the
        folder of pictures. ValueError, in one line, where it cannot be."""
        sides = {"slow": [self.slow], "fix": [self.fix], "tried": [self.slow, self.tried]}[side]
        more = {name: value for own in sides for name, value in own.items() if name != "command"}
        words = [self.command, *(str(own["command"]) for own in sides if "command" in own)]
        settings = {
            "workload": "command",
            "command": " ".join(words).replace("{images}", str(images)),
            "launcher": self.launcher or ("none" if self.ranks == 1 else "srun"),
            "ranks_per_node": self.ranks,
            "workdir": str(OWN if self.code == "own" else peers / self.code),
            "warmup_steps": WARMUP,
            "timed_steps": self.steps,
            "traced_steps": TRACED,
            **more,
        }
        point = complete(settings)
        for reason in reasons(point):
            raise ValueError(f"{LIST.name}: {self.name}: {reason.text}")
        return point


def load(path: Path = LIST) -> list[ScriptRun]:
    """All entries, in their order."""
    return [ScriptRun(**entry) for entry in yaml.load(path.read_text(), yaml.CSafeLoader)["runs"]]
