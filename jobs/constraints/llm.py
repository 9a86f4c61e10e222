"""What tuning of language models cannot be."""

from __future__ import annotations

from jobs.constraints.reason import Reason
from jobs.point import Point

MAX_SEQ_LEN = 8192
MAX_SEQ_LEN_NANO = 1024


def sequence_length(p: Point) -> Reason | None:
    limit = MAX_SEQ_LEN_NANO if p.model == "llama-nano" else MAX_SEQ_LEN
    if p.seq_len is not None and p.seq_len > limit:
        return Reason(("seq_len", "model"), f"{p.seq_len} is more than {limit}, the most of {p.model}")
    return None


CHECKS = (sequence_length,)
