"""Reads runs.yaml: what is run, and the label of each run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from nightsweep.jobs.point.check import reasons
from nightsweep.jobs.point.point import Point, complete

RUNS = Path(__file__).with_name("runs.yaml")
INJECTION_VARIABLE = "NIGHTSWEEP_TEST_INJECTION"
"""JSON: the names of functions of inject.py, each with its options."""
OF_RANKS = ("exposed_communication", "small_messages", "slow_interconnect", "straggler")
OF_LOADING = ("loader_wait", "cpu_preprocessing")
UNTRACED = {"traced_steps": 0, "keep_report": True}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run; see runs.yaml for its fields."""

    name: str
    settings: dict[str, Any]
    half: str
    kinds: list[str] = field(default_factory=list)
    also: list[str] = field(default_factory=list)
    injected: str | None = None
    inject: dict[str, dict[str, Any]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    neighbour: str | None = None
    remedy: dict[str, Any] | None = None
    rank: int | None = None
    timed: bool = False

    @cached_property
    def point(self) -> Point:
        return complete(self.settings)

    @property
    def is_timed(self) -> bool:
        return self.timed or self.remedy is not None or not self.point.traced_steps

    @cached_property
    def remedied(self) -> Point | None:
        """The point with the remedy; it is timed, not traced."""
        return complete(self.settings | self.remedy | UNTRACED) if self.remedy is not None else None

    def variables(self) -> dict[str, str]:
        """What the ranks find in their environment."""
        return self.environment | ({INJECTION_VARIABLE: json.dumps(self.inject)} if self.inject else {})

    def label(self) -> dict[str, Any]:
        """label.json of the stored run."""
        return {
            "kinds": self.kinds,
            "also": self.also,
            "rank": self.rank,
            "healthy": not self.kinds,
            "impossible": self.impossible(),
            "half": self.half,
            "injected": self.injected or ("settings of the point" if self.kinds else "nothing"),
        }

    def impossible(self) -> list[str]:
        """Kinds that cannot be, by what the run is."""
        point = self.point
        found = {
            **dict.fromkeys(OF_RANKS, point.world_size == 1),
            **dict.fromkeys(OF_LOADING, point.loader == "device" and "slow_loader" not in self.inject),
            "layout_transposes": point.workload == "llm" or point.model == "vit_s",
            "tensor_cores_unused": point.precision == "bf16_pure",
            "gpu_shared": point.tenants == 1 and self.neighbour != "gpu",
            "memory_pressure": point.offload == "none" and "memory_cap" not in self.inject,
            "memory_headroom": "memory_cap" in self.inject,
            "missing_trace": point.traced_steps > 0,
            "missing_counters": point.nvml_hz > 0 and self.is_timed,  # a trace alone may end before a sample is taken
        }
        return sorted(kind for kind, cannot in found.items() if cannot and kind not in self.kinds)


def load(path: Path = RUNS) -> list[Run]:
    """All runs. ValueError, in one line, where one cannot be."""
    content = yaml.safe_load(path.read_text())
    runs = []
    for entry in content["runs"]:
        settings = content["bases"][entry.pop("base")] | entry.pop("set", {})
        runs.append(Run(settings=settings, **entry))
    for run in runs:
        for point in filter(None, (run.point, run.remedied)):
            for reason in reasons(point):
                raise ValueError(f"{path}: {run.name}: {reason.text}")
    return runs
