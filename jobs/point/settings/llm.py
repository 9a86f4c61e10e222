"""Tuning of language models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nightsweep.jobs.point.llama import SHAPES
from nightsweep.jobs.point.reason import Reason
from nightsweep.jobs.point.settings.field import MOST_PATH, only, setting

if TYPE_CHECKING:
    from nightsweep.jobs.point.point import Point


ADAPTERS = ("lora", "qlora", "dpo_lora", "dpo_qlora")
"""Methods that train adapters beside frozen weights."""
PREFERENCES = ("dpo", "dpo_lora", "dpo_qlora")
"""Methods that learn from preferred texts: a sample is a pair of these."""


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
    seq_len: int | None = setting("Tokens of a sequence.", 512, only="llm", minimum=8, maximum=1_000_000)
    sequences: Literal["windows", "padded", "packed"] | None = setting(
        "How text fills sequences: cut anywhere; a document each, padded to the end; or several documents each, none "
        "of which sees another. A document longer than seq_len becomes several.",
        "windows",
        only="llm",
    )
    lora_rank: int | None = setting(
        "Rank of the LoRA adapters.", 8, only="llm", minimum=1, maximum=65_536, needs=[only("method", *ADAPTERS)]
    )
    lora_alpha: int | None = setting(
        "Scale of the adapters, times rank; 0: twice the rank.",
        0,
        only="llm",
        minimum=0,
        maximum=1_000_000,
        needs=[only("method", *ADAPTERS)],
    )
    lora_dropout: float | None = setting(
        "Dropout before the adapters.",
        0.0,
        only="llm",
        minimum=0,
        exclusiveMaximum=1,
        needs=[only("method", *ADAPTERS)],
    )
    lora_targets: Literal["all", "attention", "qv"] | None = setting(
        "Layers with adapters: all linear ones but the last, those of attention, or the query and value projections.",
        "all",
        only="llm",
        needs=[only("method", *ADAPTERS)],
    )
    dpo_beta: float | None = setting(
        "DPO's beta.", 0.1, only="llm", exclusiveMinimum=0, maximum=1e6, needs=[only("method", *PREFERENCES)]
    )
    activation_checkpointing: bool | None = setting(
        "Recompute each layer's activations in the backward pass.", False, only="llm"
    )
    checkpoint_every: int | None = setting(
        "Recompute the activations of every n-th layer only.",
        1,
        only="llm",
        minimum=1,
        maximum=1000,
        needs=[only("activation_checkpointing", True)],
    )
    loss_chunks: int | None = setting(
        "Parts in which the last layer and the loss are computed, so that the logits of a batch are never held whole; "
        "0: as the model's library does it.",
        0,
        only="llm",
        minimum=0,
        maximum=65_536,
    )
    float8: Literal["none", "tensorwise", "rowwise"] | None = setting(
        "Products of the linear layers but the last in float8, scaled by tensor or by row.", "none", only="llm"
    )
    weights: str | None = setting(
        "random, or the folder of a checkpoint of transformers, whose shape must be the model's.",
        "random",
        only="llm",
        minLength=1,
        maxLength=MOST_PATH,
    )


MAX_SEQ_LEN = 8192
MAX_SEQ_LEN_NANO = 1024
FLOAT8_METHODS = ("full", "lora", "dpo", "dpo_lora")


def sequence_length(p: Point) -> Reason | None:
    limit = MAX_SEQ_LEN_NANO if p.model == "llama-nano" else MAX_SEQ_LEN
    if p.seq_len is not None and p.seq_len > limit:
        return Reason(("seq_len", "model"), f"{p.seq_len} is more than {limit}, the most of {p.model}")
    return None


def pairs_are_windows(p: Point) -> Reason | None:
    if p.method in PREFERENCES and p.sequences != "windows":
        text = f"sequences {p.sequences} with method {p.method}: preference pairs are made of windows"
        return Reason(("sequences", "method"), text)
    return None


def packed_attention(p: Point) -> Reason | None:
    if p.sequences == "packed" and p.attention == "flash":
        text = "attention flash with sequences packed: the kernel takes no mask to keep documents apart"
        return Reason(("attention", "sequences"), text)
    return None


def checkpointed_layers(p: Point) -> Reason | None:
    shape = SHAPES.get(p.model)
    if shape and p.checkpoint_every is not None and p.checkpoint_every > shape.num_hidden_layers:
        return Reason(("checkpoint_every", "model"), f"{p.checkpoint_every} is more than the layers of {p.model}")
    return None


def float8_device(p: Point) -> Reason | None:
    if p.float8 not in (None, "none") and p.device == "cpu":
        return Reason(("float8", "device"), f"float8 {p.float8} is arithmetic of GPUs; device is cpu")
    return None


def float8_precision(p: Point) -> Reason | None:
    if p.float8 not in (None, "none") and p.precision not in ("bf16", "bf16_pure"):
        text = f"float8 {p.float8} with precision {p.precision}: its products come out in bf16, with bf16 and bf16_pure"
        return Reason(("float8", "precision"), text)
    return None


def float8_method(p: Point) -> Reason | None:
    if p.float8 not in (None, "none") and p.method not in FLOAT8_METHODS:
        return Reason(
            ("float8", "method"), f"float8 {p.float8} with method {p.method}, which rounds its weights itself"
        )
    return None


def qat_precision(p: Point) -> Reason | None:
    if p.method == "qat" and p.precision == "fp64":
        return Reason(
            ("method", "precision"), "method qat with precision fp64: torchao rounds fp32, bf16 and fp16 only"
        )
    return None


CHECKS = (
    sequence_length,
    pairs_are_windows,
    packed_attention,
    checkpointed_layers,
    float8_device,
    float8_precision,
    float8_method,
    qat_precision,
)
