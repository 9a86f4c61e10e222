"""The figure families of "Profiling and optimization of multi-card GPU machine learning jobs" (arXiv 2505.22905)."""

from __future__ import annotations

from analysis.figures.family import Family
from analysis.paper.claims import forest
from analysis.paper.figures import (
    accuracy,
    image_calls,
    layouts,
    llm_calls,
    llm_memory,
    llm_time,
    llm_transfers,
    loader_copies,
    loaders,
    pinned,
    precision,
    precision_gain,
    sampler,
    size_scaling,
    topology,
)

CLAIMS: dict[str, Family] = {"image_claims": forest.IMAGE, "llm_claims": forest.LLM}
"""The verdicts on its claims."""
FAMILIES: dict[str, Family] = {
    "topology": topology.FAMILY,
    "sampler": sampler.FAMILY,
    "precision": precision.FAMILY,
    "precision_gain": precision_gain.FAMILY,
    "pinned": pinned.FAMILY,
    "size_scaling": size_scaling.FAMILY,
    "image_calls": image_calls.FAMILY,
    "loaders": loaders.FAMILY,
    "layouts": layouts.FAMILY,
    "loader_copies": loader_copies.FAMILY,
    "llm_time": llm_time.FAMILY,
    "llm_memory": llm_memory.FAMILY,
    "llm_transfers": llm_transfers.FAMILY,
    "llm_calls": llm_calls.FAMILY,
    "accuracy": accuracy.FAMILY,
    **CLAIMS,
}
"""In the paper's order, as far as it is known: F1 to F15; then those of its claims."""
