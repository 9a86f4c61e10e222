"""Sequences of bytes of real text: windows cut anywhere, a document each, several documents each, or pairs."""

from __future__ import annotations

from bisect import bisect_left, insort
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from nightsweep.jobs.workloads.base import Batch
from nightsweep.jobs.workloads.llm.head import IGNORED


def load_documents(data: str) -> list[np.ndarray]:
    """The documents as bytes, uint8 of shape (N,): the topics of the builtin text, or the files of a folder."""
    if data == "builtin":
        from pydoc_data.topics import topics

        return [np.frombuffer(topics[name].encode(), np.uint8) for name in sorted(topics)]
    files = sorted(p for p in Path(data).rglob("*.txt") if p.is_file())
    if not files:
        raise FileNotFoundError(f"{data}: no *.txt in this folder")
    return [np.frombuffer(p.read_bytes(), np.uint8) for p in files]


def windows(documents: list[np.ndarray], seq_len: int) -> np.ndarray:
    """Consecutive windows (N, seq_len) of all documents, joined by newlines; the rest of the text is left out."""
    newline = np.frombuffer(b"\n", np.uint8)
    text = np.concatenate([part for document in documents for part in (newline, document)][1:])
    return text[: len(text) // seq_len * seq_len].reshape(-1, seq_len)


def pieces(documents: list[np.ndarray], seq_len: int) -> list[np.ndarray]:
    """Documents of 2 to seq_len tokens: a longer one becomes several, a single token is left out."""
    cut = [document[start : start + seq_len] for document in documents for start in range(0, len(document), seq_len)]
    return [piece for piece in cut if len(piece) > 1]


def pack(lengths: list[int], seq_len: int) -> list[list[int]]:
    """Documents of each sequence, as places in `lengths`: each goes where it leaves the least room (best fit)."""
    sequences: list[list[int]] = []
    room: list[tuple[int, int]] = []  # what is left of a sequence, and its place; sorted
    for document, length in enumerate(lengths):
        found = bisect_left(room, (length, -1))
        left, place = room.pop(found) if found < len(room) else (seq_len, len(sequences))
        if place == len(sequences):
            sequences.append([])
        sequences[place].append(document)
        if left - length > 1:
            insort(room, (left - length, place))
    return sequences


class Windows(Dataset[Batch]):
    """Windows of text: `tokens` (S,), all of them labels."""

    def __init__(self, documents: list[np.ndarray], seq_len: int) -> None:
        self.windows = windows(documents, seq_len)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Batch:
        return {"tokens": torch.from_numpy(self.windows[index].astype(np.int64))}


class Documents(Dataset[Batch]):
    """Whole documents, one or several a sequence, padded to its end: `tokens` and `labels` (S,), where padding and, as
    nothing before tells of it, the first token of each document are no labels. Packed ones also tell each token's
    `document` and its `positions` there (S,); padding is the last document."""

    def __init__(self, documents: list[np.ndarray], seq_len: int, packed: bool) -> None:
        self.pieces, self.seq_len, self.packed = pieces(documents, seq_len), seq_len, packed
        lengths = [len(piece) for piece in self.pieces]
        self.sequences = pack(lengths, seq_len) if packed else [[place] for place in range(len(lengths))]

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> Batch:
        chosen = [self.pieces[place] for place in self.sequences[index]]
        lengths = [len(piece) for piece in chosen]
        padding = self.seq_len - sum(lengths)
        tokens = np.concatenate([*chosen, np.zeros(padding, np.uint8)]).astype(np.int64)
        labels = tokens.copy()
        labels[np.cumsum([0, *lengths[:-1]])] = IGNORED
        labels[len(labels) - padding :] = IGNORED
        batch = {"tokens": tokens, "labels": labels, "length": np.array(sum(lengths))}
        if self.packed:
            spans = [*lengths, padding]
            batch["document"] = np.repeat(np.arange(len(spans)), spans)
            batch["positions"] = np.concatenate([np.arange(span) for span in spans])
        return {name: torch.from_numpy(values) for name, values in batch.items()}


class Pairs(Dataset[Batch]):
    """Preference pairs: `tokens` and `labels` (2, S), chosen and rejected. Both begin with the first half of a window,
    which is no label; the chosen one goes on as the text does, the rejected one as the text does elsewhere."""

    def __init__(self, documents: list[np.ndarray], seq_len: int) -> None:
        self.windows = windows(documents, seq_len)
        self.prompt = seq_len // 2

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Batch:
        elsewhere = self.windows[(index + len(self.windows) // 2) % len(self.windows)]
        tokens = torch.from_numpy(np.stack([self.windows[index]] * 2).astype(np.int64))
        tokens[1, self.prompt :] = torch.from_numpy(elsewhere[self.prompt :].astype(np.int64))
        labels = tokens.clone()
        labels[:, : self.prompt] = IGNORED
        return {"tokens": tokens, "labels": labels}
