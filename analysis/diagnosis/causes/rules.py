"""All rules, cause by cause. A rule is a function of the evidence that gives the causes it finds; its text says what it
looks for and how the share is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from analysis.diagnosis.cause import Cause
from analysis.diagnosis.causes import (
    communication,
    data_loading,
    insufficient_parallelism,
    memory_management,
    model_hyperparameters,
    monitoring,
    scheduling,
)
from analysis.diagnosis.evidence.evidence import Evidence


@dataclass(frozen=True)
class Rule:
    """`traced`: whether it has something to say only of a run with a trace of a GPU."""

    cause: str
    find: Callable[[Evidence], list[Cause]]
    traced: bool

    @property
    def kind(self) -> str:
        return self.find.__name__

    @property
    def text(self) -> str:
        return " ".join((self.find.__doc__ or "").split())


_FILES = (
    insufficient_parallelism,
    data_loading,
    model_hyperparameters,
    memory_management,
    communication,
    scheduling,
    monitoring,
)
_UNTRACED = {
    "loader_wait", "cpu_preprocessing", "memory_headroom", "memory_pressure", "gpu_shared", "throttled", "numa_far",
    "missing_trace", "missing_counters",
}  # fmt: skip
RULES = tuple(Rule(file.CAUSE, find, find.__name__ not in _UNTRACED) for file in _FILES for find in file.RULES)
