"""All figures, by name: those to print first, in the order of the report; then the supplement, and those of the claims
of "Profiling and optimization of multi-card GPU machine learning jobs" (arXiv 2505.22905)."""

from __future__ import annotations

from pathlib import Path

from nightsweep.analysis.figures import (
    causes,
    failures,
    held_time,
    loss,
    remedies,
    roofline,
    scaling,
    setting_effects,
    timeline,
)
from nightsweep.analysis.figures.family import Family
from nightsweep.analysis.paper.claims import forest
from nightsweep.analysis.paper.figures import (
    accuracy,
    calls_and_copies,
    loaders,
    methods,
    sampler,
    switches,
    topology,
    traced_steps,
)

FAMILIES: dict[str, Family] = {
    "setting_effects": setting_effects.FAMILY,
    "switches": switches.FAMILY,
    "loaders": loaders.FAMILY,
    "scaling": scaling.FAMILY,
    "methods": methods.FAMILY,
    "traced_steps": traced_steps.FAMILY,
    "causes": causes.FAMILY,
    "roofline": roofline.FAMILY,
    "held_time": held_time.FAMILY,
    "timeline": timeline.FAMILY,
    "remedies": remedies.FAMILY,
    "failures": failures.FAMILY,
    "loss": loss.FAMILY,
    "topology": topology.FAMILY,
    "sampler": sampler.FAMILY,
    "image_calls": calls_and_copies.IMAGE_CALLS,
    "loader_copies": calls_and_copies.LOADER_COPIES,
    "llm_transfers": calls_and_copies.LLM_TRANSFERS,
    "accuracy": accuracy.FAMILY,
    "image_claims": forest.IMAGE,
    "llm_claims": forest.LLM,
}
SUPPLEMENT = "supplement"
"""The folder of all that are not among those to print."""


def stem(name: str, folder: Path) -> Path:
    """Where a figure lies in a folder of figures, without the ending of its files."""
    return folder / name if FAMILIES[name].place == "main" else folder / SUPPLEMENT / name
