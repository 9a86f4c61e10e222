"""What tuning of language models cannot be."""

from __future__ import annotations

from jobs.point.constraints.reason import Reason
from jobs.point.llama import SHAPES
from jobs.point.point import Point

MAX_SEQ_LEN = 8192
MAX_SEQ_LEN_NANO = 1024
FLOAT8_METHODS = ("full", "lora", "dpo", "dpo_lora")


def sequence_length(p: Point) -> Reason | None:
    limit = MAX_SEQ_LEN_NANO if p.model == "llama-nano" else MAX_SEQ_LEN
    if p.seq_len is not None and p.seq_len > limit:
        return Reason(("seq_len", "model"), f"{p.seq_len} is more than {limit}, the most of {p.model}")
    return None


def pairs_are_windows(p: Point) -> Reason | None:
    if p.method in ("dpo", "dpo_lora", "dpo_qlora") and p.sequences != "windows":
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


def loss_in_parts_split_up(p: Point) -> Reason | None:
    if p.loss_chunks and (p.strategy in ("tp", "pp") or p.tensor_parallel > 1):
        split = p.strategy if p.strategy in ("tp", "pp") else f"tensor_parallel {p.tensor_parallel}"
        return Reason(
            ("loss_chunks", "strategy"), f"loss_chunks {p.loss_chunks} with {split}, which splits the last layer"
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
    loss_in_parts_split_up,
)
