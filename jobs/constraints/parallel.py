"""What strategies cannot do."""

from __future__ import annotations

from jobs.constraints.reason import Reason
from jobs.point import Point


def zero_precision(p: Point) -> Reason | None:
    if p.strategy in ("zero1", "zero2", "zero3") and p.precision == "fp64":
        return Reason(
            ("strategy", "precision"), f"{p.strategy} with fp64: DeepSpeed trains in fp32, bf16 and fp16 only"
        )
    return None


CHECKS = (zero_precision,)
