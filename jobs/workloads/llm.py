"""LLM tuning: a Llama-architecture model with random weights, all of it or LoRA adapters, on bytes of real text.

Time, memory and traffic do not depend on the values of the weights, so none need to be fetched. Text is read as bytes
(one token each): the files of a folder, or the language reference that every CPython ships.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from jobs.point import Point
from jobs.workloads import Batch, Work

# hidden, layers, heads, key/value heads, intermediate, vocabulary
SHAPES: dict[str, tuple[int, int, int, int, int, int]] = {
    "llama-nano": (128, 4, 4, 2, 384, 512),
    "llama-160m": (768, 12, 12, 12, 3072, 32000),
    "llama-1b": (2048, 16, 32, 8, 8192, 128256),
    "llama-3b": (3072, 28, 24, 8, 8192, 128256),
    "llama-8b": (4096, 32, 32, 8, 14336, 128256),
}
LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class ByteText(Dataset[Batch]):
    """Consecutive windows of `seq_len` bytes."""

    def __init__(self, text: np.ndarray, seq_len: int) -> None:
        self.windows = text[: len(text) // seq_len * seq_len].reshape(-1, seq_len)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Batch:
        return {"tokens": torch.from_numpy(self.windows[index].astype(np.int64))}


def load_text(data: str) -> np.ndarray:
    """The text as bytes, uint8 of shape (N,)."""
    if data == "builtin":
        from pydoc_data.topics import topics

        text = "\n".join(topics[name] for name in sorted(topics))
        return np.frombuffer(text.encode(), np.uint8)
    files = sorted(p for p in Path(data).rglob("*.txt") if p.is_file())
    if not files:
        raise FileNotFoundError(f"{data}: no *.txt in this folder")
    return np.frombuffer(b"\n".join(p.read_bytes() for p in files), np.uint8)


def build_model(point: Point) -> tuple[torch.nn.Module, tuple[torch.nn.Module, ...]]:
    """The model with random weights, and its decoder layers."""
    import transformers as hf

    hidden, layers, heads, kv_heads, intermediate, vocabulary = SHAPES[point.model]
    config = hf.LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        vocab_size=vocabulary,
        max_position_embeddings=8192,
        rope_theta=500000.0,
        use_cache=False,
    )
    model: Any = hf.LlamaForCausalLM(config)
    blocks = tuple(model.model.layers)
    if point.activation_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    if point.method == "lora":
        import peft

        rank = point.lora_rank
        assert rank is not None
        model = peft.get_peft_model(
            model,
            peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=LORA_TARGETS, task_type="CAUSAL_LM"),
        )
    return model, blocks


def loss(network: Any, batch: Batch) -> torch.Tensor:
    """Cross entropy of the next token, mean over one micro-batch. A batch of the data set has no `mask`: causal."""
    tokens = batch["tokens"]
    out: torch.Tensor = network(input_ids=tokens, labels=tokens, attention_mask=batch.get("mask")).loss
    return out


def blank(point: Point) -> Batch:
    """A micro-batch of zeros of the shapes that `loss` takes. With a mask: to make one of their own, models look into
    values, which the meta device has not."""
    count, length = point.micro_batch, point.seq_len
    assert length is not None
    mask = torch.zeros(count, 1, length, length, dtype=torch.bool)
    return {"tokens": torch.zeros(count, length, dtype=torch.int64), "mask": mask}


def build(point: Point) -> Work:
    assert point.seq_len is not None
    model, layers = build_model(point)
    dataset = ByteText(load_text(point.data), point.seq_len)
    return Work(model, dataset, lambda batch: batch, loss, layers, tokens_per_sample=point.seq_len)
