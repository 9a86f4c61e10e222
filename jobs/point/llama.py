"""Sizes of the Llama models. A sweep is checked against them without loading torch."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """Sizes of a model, by transformers' names."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int


SHAPES = {
    "llama-nano": Shape(128, 4, 4, 2, 384, 512),
    "llama-160m": Shape(768, 12, 12, 12, 3072, 32000),
    "llama-1b": Shape(2048, 16, 32, 8, 8192, 128256),
    "llama-3b": Shape(3072, 28, 24, 8, 8192, 128256),
    "llama-8b": Shape(4096, 32, 32, 8, 14336, 128256),
}
