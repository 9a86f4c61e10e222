"""All rules, category by category, and all thresholds."""

from __future__ import annotations

import sys

from analysis.diagnosis import thresholds
from analysis.diagnosis.causes import (
    communication,
    data_loading,
    insufficient_parallelism,
    memory_management,
    model_hyperparameters,
    monitoring,
    scheduling,
)

RULES = (
    *insufficient_parallelism.RULES,
    *data_loading.RULES,
    *model_hyperparameters.RULES,
    *memory_management.RULES,
    *communication.RULES,
    *scheduling.RULES,
    *monitoring.RULES,
)


def list_thresholds() -> dict[str, thresholds.Threshold]:
    """Every threshold by its name in lower case: the shared ones, then those beside the causes."""
    modules = [thresholds, *(sys.modules[rule.find.__module__] for rule in RULES)]
    return {
        name.lower(): value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, thresholds.Threshold)
    }
