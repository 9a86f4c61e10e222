"""`nightsweep compare A B`: what changed between two runs, printed."""

from __future__ import annotations

import json
from pathlib import Path

from nightsweep.analysis.diagnosis.comparison import Comparison, compare
from nightsweep.analysis.diagnosis.thresholds import NOISE

LEAST_SHOWN_MS = 0.0005
"""Differences of parts that are no larger are shown as 0.000."""


def print_comparison(a: Path, b: Path, as_json: bool) -> int:
    """Print the comparison; the exit status. Raises InputError."""
    found = compare(a, b)
    print(json.dumps(found.as_json(), indent=2) + "\n" if as_json else screen(found, (str(a), str(b))), end="")
    return 0


def screen(found: Comparison, names: tuple[str, str]) -> str:
    """A comparison as a person reads it."""
    look = "timed" if found.timed else "traced"
    unit = "us" if found.of == "sample" else "ms"
    scale = 1e3 if found.of == "sample" else 1.0
    step = found.step
    noise = max(found.noise_ms, step.half or 0.0)
    counts = (
        f"{found.starts[0]} and {found.starts[1]} starts; {found.steps[0]} and {found.steps[1]} {look} steps in one"
    )
    level = f" (noise level {noise / step.a:.1%}: 95 %, from {found.noise.source}; at least {NOISE.value:.0%})"
    means = f"{found.of} A {step.a * scale:.3f} {unit}, B {step.b * scale:.3f} {unit}"
    lines = [
        f"A {names[0]}",
        f"B {names[1]}",
        f"{means}: {step.by / step.a:+.1%} ({counts})",
        f"verdict: {found.verdict}{level}",
    ]
    lines += [f"{name} did not end well: {why}" for name, why in zip("AB", found.failed, strict=True) if why]
    lines += [f"{name} was disturbed: {why}" for name, why in zip("AB", found.disturbed, strict=True) if why]
    diverged = zip("AB", found.diverged, strict=True)
    lines += [f"{name} diverged: its loss is not finite in step {step}" for name, step in diverged if step is not None]
    if found.two_tracers:
        lines.append(
            "two tracers: one trace has PyTorch's operators, the other none; each tracer lengthens steps differently"
        )
    if found.settings:
        lines.append(
            "settings: " + ", ".join(f"{n} {json.dumps(x)} -> {json.dumps(y)}" for n, (x, y) in found.settings.items())
        )
    if found.parts:
        lines += ["", f"  {'part of a traced step':<24}{'A ms':>12}{'B ms':>12}{'B - A':>12}{'+-':>10}"]
    for name, part in sorted(found.parts.items(), key=lambda item: -abs(item[1].by)):
        half = "" if part.half is None else f"{part.half:.3f}"
        mark = " *" if part.beyond(LEAST_SHOWN_MS) else ""
        lines.append(f"  {name:<24}{part.a:>12.3f}{part.b:>12.3f}{part.by:>+12.3f}{half:>10}{mark}")
    if found.parts:
        lines.append("  +-: half of the 95 % interval, over the steps of these two traces; *: the difference is larger")
    return "\n".join(lines) + "\n"
