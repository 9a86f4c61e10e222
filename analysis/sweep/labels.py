"""Numbers and settings in words. It imports no polars: `nightsweep check` and `nightsweep watch` start at once."""

from __future__ import annotations

SPEAKING = ("workload", "model", "strategy", "precision", "optimizer", "layout", "method", "device", "tracer", "fault")
"""Settings whose values say by themselves which setting they belong to."""


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def decimal(number: float) -> str:
    """Bytes in words, decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def percent(share: float) -> str:
    """A share between 0 and 1, or a loss below it."""
    return f"{100 * share:.1f} %"
