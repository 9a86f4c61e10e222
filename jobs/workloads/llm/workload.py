"""LLM tuning: a Llama-architecture model on bytes of real text (one token each), by the point's method.

Weights are random unless a checkpoint is given: time, memory and traffic do not depend on their values. Text is the
files of a folder, or the language reference that every CPython ships.
"""

from __future__ import annotations

from typing import Any

import torch

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.workloads.base import Batch, Work
from nightsweep.jobs.workloads.llm import batches
from nightsweep.jobs.workloads.llm.tuning import build_model

__all__ = ["blank", "build", "build_model", "loss"]

blank = batches.blank


def loss(network: Any, batch: Batch) -> torch.Tensor:
    """Loss of one micro-batch: cross entropy of the next token, mean over its labels; with DPO the mean over pairs."""
    tokens = batch["tokens"]
    out: torch.Tensor = network(
        input_ids=tokens,
        labels=batch.get("labels", tokens),
        attention_mask=batch.get("mask"),
        position_ids=batch.get("positions"),
    ).loss
    return out


def build(point: Point) -> Work:
    """Model on torch's default device, data set and loss of the point."""
    model: Any
    model, layers = build_model(point)
    llama = model.get_base_model() if hasattr(model, "get_base_model") else model
    data = batches.dataset(point)
    return Work(
        model,
        data,
        batches.preparation(point),
        loss,
        layers,
        tokens_per_sample=batches.tokens_per_sample(point),
        tokens=None if point.sequences == "windows" else batches.real_tokens,
        facts=getattr(llama, "facts", dict),
    )
