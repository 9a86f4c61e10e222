"""All rules, category by category."""

from __future__ import annotations

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
