"""Tuning of language models."""

from __future__ import annotations

from collections.abc import Iterator
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


def conflicts(p: Point) -> Iterator[Reason]:
    limit = MAX_SEQ_LEN_NANO if p.model == "llama-nano" else MAX_SEQ_LEN
    if p.seq_len is not None and p.seq_len > limit:
        yield Reason(("seq_len", "model"), f"{p.seq_len} is more than {limit}, the most of {p.model}")
    if p.method in PREFERENCES and p.sequences != "windows":
        text = f"sequences {p.sequences} with method {p.method}: preference pairs are made of windows"
        yield Reason(("sequences", "method"), text)
    if p.sequences == "packed" and p.attention == "flash":
        text = "attention flash with sequences packed: the kernel takes no mask to keep documents apart"
        yield Reason(("attention", "sequences"), text)
    shape = SHAPES.get(p.model)
    if shape and p.checkpoint_every is not None and p.checkpoint_every > shape.num_hidden_layers:
        yield Reason(("checkpoint_every", "model"), f"{p.checkpoint_every} is more than the layers of {p.model}")


def number_conflicts(p: Point) -> Iterator[Reason]:
    """Of number formats."""
    float8 = p.float8 not in (None, "none")
    if float8 and p.device == "cpu":
        yield Reason(("float8", "device"), f"float8 {p.float8} is arithmetic of GPUs; device is cpu")
    if float8 and p.precision not in ("bf16", "bf16_pure"):
        text = f"float8 {p.float8} with precision {p.precision}: its products come out in bf16, with bf16 and bf16_pure"
        yield Reason(("float8", "precision"), text)
    if float8 and p.method not in FLOAT8_METHODS:
        text = f"float8 {p.float8} with method {p.method}, which rounds its weights itself"
        yield Reason(("float8", "method"), text)
    if p.method == "qat" and p.precision == "fp64":
        text = "method qat with precision fp64: torchao rounds fp32, bf16 and fp16 only"
        yield Reason(("method", "precision"), text)


CHECKS = (conflicts, number_conflicts)
