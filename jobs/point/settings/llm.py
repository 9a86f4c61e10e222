"""Tuning of language models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jobs.point.settings.field import setting


@dataclass(frozen=True, kw_only=True)
class Llm:
    """Settings of the llm workload; None in others."""

    method: Literal["full", "lora", "qlora", "dpo", "dpo_lora", "dpo_qlora", "qat"] | None = setting(
        "What is trained of the model, and for what: all of it; LoRA adapters; adapters over a base in NF4; the "
        "preference loss DPO on all of it or on adapters, beside a reference model (a sample is a pair of texts); all "
        "of it with the linear layers' numbers rounded as int4 weights and int8 activations would be (QAT).",
        "full",
        only="llm",
    )
    seq_len: int | None = setting("Tokens of a sequence.", 512, only="llm", minimum=8)
    sequences: Literal["windows", "padded", "packed"] | None = setting(
        "How text fills sequences: cut anywhere; a document each, padded to the end; or several documents each, none "
        "of which sees another. A document longer than seq_len becomes several.",
        "windows",
        only="llm",
    )
    lora_rank: int | None = setting("Rank of the LoRA adapters.", 8, only="llm", minimum=1)
    lora_alpha: int | None = setting("Scale of the adapters, times rank; 0: twice the rank.", 0, only="llm", minimum=0)
    lora_dropout: float | None = setting("Dropout before the adapters.", 0.0, only="llm", minimum=0, exclusiveMaximum=1)
    lora_targets: Literal["all", "attention", "qv"] | None = setting(
        "Layers with adapters: all linear ones but the last, those of attention, or the query and value projections.",
        "all",
        only="llm",
    )
    dpo_beta: float | None = setting("DPO's beta.", 0.1, only="llm", exclusiveMinimum=0)
    activation_checkpointing: bool | None = setting(
        "Recompute each layer's activations in the backward pass.", False, only="llm"
    )
    checkpoint_every: int | None = setting(
        "Recompute only every so many-th layer's activations.", 1, only="llm", minimum=1
    )
    loss_chunks: int | None = setting(
        "Parts in which the last layer and the loss are computed, so that the logits of a batch are never held whole; "
        "0: as the model's library does it.",
        0,
        only="llm",
        minimum=0,
    )
    float8: Literal["none", "tensorwise", "rowwise"] | None = setting(
        "Products of the linear layers but the last in float8, scaled by tensor or by row.", "none", only="llm"
    )
    weights: str | None = setting(
        "random, or the folder of a checkpoint of transformers, whose shape must be the model's.",
        "random",
        only="llm",
        minLength=1,
    )
