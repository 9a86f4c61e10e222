"""What is trained: each workload gives a model, a data set and the loss of one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

from jobs.point.point import Point
from jobs.record.heartbeat import Heartbeat

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


def prepare_data(point: Point, heart: Heartbeat) -> None:
    """Make on disk what the data set is read from; may take minutes, in which the heart beats."""
    if point.workload == "image":
        from jobs.workloads.images import prepared

        prepared.of_point(point, heart.pulse)


def build(point: Point, device: torch.device | None = None) -> Work:
    """The point's workload. Weights follow the seed alone, so that every rank and strategy starts from the same. A
    language model is made on `device` (None: the CPU), where 8B weights take seconds and not minutes."""
    torch.manual_seed(point.seed + point.repeat)
    with torch.device(device if device and point.workload == "llm" else "cpu"):
        work: Work = module(point).build(point)
    return work


def module(point: Point) -> Any:
    """The module of the point's workload: `build_model`, `build`, `loss`, and `blank`, a micro-batch of zeros."""
    if point.workload == "image":
        from jobs.workloads import image

        return image
    from jobs.workloads import llm

    return llm
