"""All rules, category by category, and all thresholds."""

from __future__ import annotations

from nightsweep.analysis.diagnosis import thresholds
from nightsweep.analysis.diagnosis.causes import (
    communication,
    data_loading,
    insufficient_parallelism,
    memory_management,
    model_hyperparameters,
    monitoring,
    scheduling,
)

CATEGORIES = (
    insufficient_parallelism,
    data_loading,
    model_hyperparameters,
    memory_management,
    communication,
    scheduling,
    monitoring,
)
RULES = tuple(rule for category in CATEGORIES for rule in category.RULES)


def list_thresholds() -> dict[str, thresholds.Threshold]:
    """Every threshold by its name in lower case: the shared ones, then those beside the causes."""
    return {
        name.lower(): value
        for module in (thresholds, *CATEGORIES)
        for name, value in vars(module).items()
        if isinstance(value, thresholds.Threshold)
    }
