"""Configurations of the Llama models for transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nightsweep.jobs.point.llama import SHAPES
from nightsweep.jobs.point.point import Point


def configuration(point: Point, layers: int | None = None) -> Any:
    """transformers' configuration: the preset's or, with `weights`, the checkpoint's own, which may scale RoPE.
    `layers`: instead of all of them.

    Raises FileNotFoundError where the folder has no config.json, ValueError where its shape is not the model's."""
    import transformers as hf

    sizes = SHAPES[point.model]._asdict()
    part = {} if layers is None else {"num_hidden_layers": layers}
    if point.weights == "random":
        return hf.LlamaConfig(**sizes | part, max_position_embeddings=8192, rope_theta=500000.0, use_cache=False)
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
    config = hf.LlamaConfig.from_pretrained(point.weights, use_cache=False, **part)
    config.tie_word_embeddings = False  # the presets are untied; weights.py copies a tied head
    return config
