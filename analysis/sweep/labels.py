"""Numbers and settings in words. It imports no polars: `nightsweep check` and `nightsweep watch` start at once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from nightsweep.jobs.point.settings.command import SWITCHES
from nightsweep.jobs.point.template import as_text

SPEAKING = ("workload", "model", "strategy", "precision", "optimizer", "layout", "method", "device", "tracer", "fault")
"""Settings whose values say by themselves which setting they belong to."""
_SHORT = {
    "ranks_per_node": "{} rank{s}/node",
    "nodes": "{} node{s}",
    "image_size": "{} px",
    "loader_workers": "{} loader worker{s}",
    "resize_on": "resize on {}",
}


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def short_number(number: float, digits: int = 3) -> str:
    """A number with this many digits; a larger one with all before the point, and without an exponent."""
    return f"{number:.{digits}g}" if abs(number) < 10**digits - 0.5 else f"{number:,.0f}"


def decimal(number: float) -> str:
    """Bytes in words, decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5:
            return f"{short_number(number)} {unit}"
        number /= 1000
    return f"{short_number(number)} TB"


def percent(share: float) -> str:
    """A share between 0 and 1, or a loss below it."""
    return f"{100 * share:.1f} %"


def hours(seconds: float) -> str:
    """Seconds as a number of hours, never with an exponent."""
    found = seconds / 3600
    return short_number(found) if abs(found) >= 1e-4 else f"{found:.6f}"


def duration(seconds: float) -> str:
    """As 45 s, 12 min, 3 h 05."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d}"


def value_text(name: str, value: Any) -> str:
    """A setting's value beside its name, as in a table."""
    if name == "variables":
        return word(name, value)
    return "none" if value is None else as_text(value)


def word(name: str, value: Any) -> str:
    """A setting's value as a label says it."""
    if name == "variables":
        known = json.loads(value or "{}")
        axes = [(key.removeprefix("env.").removeprefix("config."), one) for key, one in known.items()]
        return ", ".join(f"no {key}" if one is None else f"{key} {as_text(one)}" for key, one in axes)
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if value is None:
        return f"{name} as in the script" if name in SWITCHES else f"no {name}"
    if name in SPEAKING:
        return str(value)
    if name in _SHORT:
        return _SHORT[name].format(value, s="" if value == 1 else "s")
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def named(row: Mapping[str, Any], usual: Mapping[str, Any], most: int, always: str | None = None) -> list[str]:
    """The settings of `usual` that a label names: all where there are no more than `most`; else `always`, and those
    that the row has another value of."""
    return [name for name in usual if len(usual) <= most or name == always or row[name] != usual[name]]


def label(row: Mapping[str, Any], names: Iterable[str]) -> str:
    """What sets a point apart; its model where nothing does."""
    return ", ".join(filter(None, (word(name, row[name]) for name in names))) or str(row.get("model", ""))
