"""What is trained: each workload gives a model, a data set and the loss of one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Work:
    """One workload, built: `prepare` is run on the device on each batch, `loss` takes the (wrapped) model."""

    model: torch.nn.Module
    dataset: Dataset[Any]
    prepare: Callable[[Batch], Batch]
    loss: Callable[[Any, Batch], torch.Tensor]
    layers: tuple[torch.nn.Module, ...]
    """The repeated blocks of the model, which FSDP2 shards one by one."""
    tokens_per_sample: int | None
    """Tokens of a sample, padding included; None where there are none."""
    tokens: Callable[[Batch], int] | None = None
    """Counts the tokens of a batch, as the loader gave it, that are not padding; None where there is no padding."""
    facts: Callable[[], dict[str, Any]] = dict
    """What is known at the end of training beside the loss, for the rank's result. Reads the device."""
    held_back: Dataset[Any] | None = None
    """What is never trained on, where accuracy is to be measured."""
    correct: Callable[[Any, Batch], torch.Tensor] | None = None
    """How many samples of a batch the (wrapped) model gets right."""
