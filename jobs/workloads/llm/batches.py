"""What the model is given: the point's sequences, batched, and what they need on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.point.settings.llm import PREFERENCES
from nightsweep.jobs.workloads import dtypes
from nightsweep.jobs.workloads.base import Batch
from nightsweep.jobs.workloads.llm.text import Documents, Pairs, Windows, load_documents


def dataset(point: Point) -> Dataset[Any]:
    """The point's sequences."""
    assert point.seq_len is not None
    documents = load_documents(point.data)
    if point.method in PREFERENCES:
        return Pairs(documents, point.seq_len)
    if point.sequences == "windows":
        return Windows(documents, point.seq_len)
    return Documents(documents, point.seq_len, packed=point.sequences == "packed")


def tokens_per_sample(point: Point) -> int:
    """Tokens of one sample, padding included: of both texts of a pair."""
    assert point.seq_len is not None
    return 2 * point.seq_len if point.method in PREFERENCES else point.seq_len


def real_tokens(batch: Batch) -> int:
    """Tokens of a batch from the loader that are not padding."""
    return int(batch["length"].sum())


def preparation(point: Point) -> Callable[[Batch], Batch]:
    """What is done to a batch on the device: packed documents get a mask, one for all layers."""
    if point.sequences != "packed":
        return lambda batch: batch
    if point.attention != "eager":
        return lambda batch: {**batch, "mask": separate_documents(batch["document"])}
    # written-out attention adds its mask to the scores
    dtype = dtypes.compute(point)

    def additive(batch: Batch) -> Batch:
        seen = separate_documents(batch["document"])
        return {**batch, "mask": torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)}

    return additive


def separate_documents(document: torch.Tensor) -> torch.Tensor:
    """Which token (row) sees which (column), (N, 1, S, S) bool: those before it and itself, of its document (N, S)."""
    same = document[:, None, :, None] == document[:, None, None, :]
    return same.tril_()


def blank(point: Point) -> Batch:
    """A micro-batch of zeros of the shapes that `loss` takes."""
    count, length = point.micro_batch, point.seq_len
    assert length is not None
    if point.method in PREFERENCES:
        pairs = torch.zeros(count, 2, length, dtype=torch.int64)
        return {"tokens": pairs, "labels": pairs}
    tokens = torch.zeros(count, length, dtype=torch.int64)
    if point.sequences == "packed":
        mask = torch.zeros(count, 1, length, length, dtype=torch.bool)
        return {"tokens": tokens, "positions": tokens, "mask": mask}
    return {"tokens": tokens}
