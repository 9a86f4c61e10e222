"""Sizes of the Llama models, and their configurations for transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jobs.point import Point

# hidden, layers, heads, key/value heads, intermediate, vocabulary
SHAPES: dict[str, tuple[int, int, int, int, int, int]] = {
    "llama-nano": (128, 4, 4, 2, 384, 512),
    "llama-160m": (768, 12, 12, 12, 3072, 32000),
    "llama-1b": (2048, 16, 32, 8, 8192, 128256),
    "llama-3b": (3072, 28, 24, 8, 8192, 128256),
    "llama-8b": (4096, 32, 32, 8, 14336, 128256),
}
NAMES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)


def shape(model: str) -> dict[str, int]:
    """The sizes of a model by transformers' names."""
    return dict(zip(NAMES, SHAPES[model], strict=True))


def configuration(point: Point) -> Any:
    """transformers' configuration: the preset's or, with `weights`, the checkpoint's own, which may scale RoPE.

    Raises FileNotFoundError where the folder has no config.json, ValueError where its shape is not the model's."""
    import transformers as hf

    sizes = shape(point.model)
    if point.weights == "random":
        return hf.LlamaConfig(**sizes, max_position_embeddings=8192, rope_theta=500000.0, use_cache=False)
    assert point.weights is not None
    path = Path(point.weights) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{point.weights}: no config.json of a checkpoint in this folder")
    found = json.loads(path.read_text())
    if found.get("model_type") != "llama":
        raise ValueError(f"{path}: a checkpoint of {found.get('model_type')}, not of llama")
    for name, size in sizes.items():
        if found.get(name) != size:
            raise ValueError(f"{path}: {name} is {found.get(name)}, that of {point.model} is {size}")
    config = hf.LlamaConfig.from_pretrained(point.weights, use_cache=False)
    config.tie_word_embeddings = False  # the presets are untied; weights.py copies a tied head
    return config
