"""`nightsweep compare A B`: how much longer or shorter B's steps are than A's, in which parts, and whether that is more
than noise.

The difference of two means and its 95 % interval are Welch's (unequal variances, Student's t) over the steps. Steps of
one start are alike in what differs from start to start, which they cannot show; so a difference below the threshold
`noise` is none, however narrow its interval is.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from analysis.diagnosis.evidence import sources
from analysis.diagnosis.evidence.evidence import Evidence
from analysis.diagnosis.thresholds import NOISE
from analysis.sweep.interval import half_interval
from analysis.tables.part_names import PARTS

Floats = npt.NDArray[np.float64]
EXIT_WRONG = 2


@dataclass(frozen=True)
class Difference:
    """Means of a time in A and B, ms, and half of the 95 % interval of B - A; None where either is one step."""

    a: float
    b: float
    half: float | None

    @property
    def by(self) -> float:
        return self.b - self.a

    def beyond(self, noise_ms: float) -> bool | None:
        """Whether B - A is more than noise; None where steps cannot tell."""
        return None if self.half is None else abs(self.by) > max(self.half, noise_ms)

    def as_json(self, noise_ms: float) -> dict[str, Any]:
        return {
            "a_ms": self.a,
            "b_ms": self.b,
            "difference_ms": self.by,
            "half_interval_ms": self.half,
            "beyond_noise": self.beyond(noise_ms),
        }


@dataclass(frozen=True)
class Comparison:
    """`step`: of steps, or of samples where the two have batches of different sizes (`of`). `steps`: how many there
    were. `timed`: whether they are those of the timed run. `settings`: those that differ, (A, B)."""

    of: str
    step: Difference
    steps: tuple[int, int]
    timed: bool
    parts: dict[str, Difference]
    settings: dict[str, tuple[Any, Any]]

    @property
    def noise_ms(self) -> float:
        return NOISE.value * self.step.a

    @property
    def verdict(self) -> str:
        beyond = self.step.beyond(self.noise_ms)
        if beyond is None:
            return "cannot be said: one step has no spread"
        return ("faster" if self.step.by < 0 else "slower") if beyond else "no difference beyond noise"

    def as_json(self) -> dict[str, Any]:
        noise = max(self.noise_ms, self.step.half or 0.0)
        return {
            "schema": 1,
            "verdict": self.verdict,
            "of": self.of,
            "step": self.step.as_json(self.noise_ms),
            "noise_ms": noise,
            "noise_share": noise / self.step.a,
            "steps": list(self.steps),
            "timed": self.timed,
            "parts": {name: part.as_json(0.0) for name, part in self.parts.items()},
            "settings": {name: list(values) for name, values in self.settings.items()},
        }


def compare_runs(a: Evidence, b: Evidence) -> Comparison:
    """What changed from A to B. Raises SourceError where one of them has no step."""
    timed = a.timed_ns is not None and b.timed_ns is not None
    times = [timed_steps(e) if timed else traced_steps(e) for e in (a, b)]
    samples = [samples_of(e) or 0 for e in (a, b)]
    per_sample = timed and all(samples) and samples[0] != samples[1]
    values = [t / s for t, s in zip(times, samples, strict=True)] if per_sample else times
    parts = {}
    if a.lanes and b.lanes:
        rows = {name: [e.part(name).mean(axis=0) / 1e6 for e in (a, b)] for name in PARTS}
        parts = {name: difference(*pair) for name, pair in rows.items() if pair[0].any() or pair[1].any()}
    return Comparison(
        "sample" if per_sample else "step",
        difference(*values),
        (len(times[0]), len(times[1])),
        timed,
        parts,
        setting_changes(a, b),
    )


def timed_steps(e: Evidence) -> Floats:
    """Times of the timed steps of the slowest rank, ms."""
    return e.steps.group_by("step").agg(pl.col("step_ms").max()).sort("step")["step_ms"].to_numpy()


def traced_steps(e: Evidence) -> Floats:
    """Times of the traced steps of the slowest rank, ms."""
    if not e.periods.size:
        raise sources.SourceError(
            "there is no step to compare in one of the two: traces of GPUs, or points' folders, were expected"
        )
    return np.asarray(e.periods.max(axis=0) / 1e6)


def samples_of(e: Evidence) -> int | None:
    """Samples of a step over all ranks, where the point tells."""
    if e.steps.is_empty():
        return None
    return int(e.steps.group_by("step").agg(pl.col("samples").sum())["samples"].max() or 0) or None  # type: ignore[arg-type]


def difference(a: Floats, b: Floats) -> Difference:
    """B - A of two sets of steps."""
    if len(a) < 2 or len(b) < 2:
        return Difference(float(a.mean()), float(b.mean()), None)
    half = half_interval([(float(x.var(ddof=1)) / len(x), len(x)) for x in (a, b)])
    return Difference(float(a.mean()), float(b.mean()), half)


def setting_changes(a: Evidence, b: Evidence) -> dict[str, tuple[Any, Any]]:
    """Settings that differ between two points."""
    if a.point is None or b.point is None:
        return {}
    one, other = a.point.settings(), b.point.settings()
    return {n: (one.get(n), other.get(n)) for n in {**one, **other} if one.get(n) != other.get(n)}


def screen(found: Comparison, names: tuple[str, str]) -> str:
    """A comparison as a person reads it."""
    look = "timed" if found.timed else "traced"
    unit = "us" if found.of == "sample" else "ms"
    scale = 1e3 if found.of == "sample" else 1.0
    step = found.step
    noise = max(found.noise_ms, step.half or 0.0)
    counts = f"{found.steps[0]} and {found.steps[1]} {look} steps"
    level = f" (noise level {noise / step.a:.1%}: 95 % of Welch's t over steps, at least {NOISE.value:.0%})"
    means = f"{found.of} A {step.a * scale:.3f} {unit}, B {step.b * scale:.3f} {unit}"
    lines = [
        f"A {names[0]}",
        f"B {names[1]}",
        f"{means}: {step.by / step.a:+.1%} ({counts})",
        f"verdict: {found.verdict}{level if step.half is not None else ''}",
    ]
    if found.settings:
        lines.append(
            "settings: " + ", ".join(f"{n} {json.dumps(x)} -> {json.dumps(y)}" for n, (x, y) in found.settings.items())
        )
    if found.parts:
        lines += ["", f"  {'part of a traced step':<24}{'A ms':>12}{'B ms':>12}{'B - A':>12}{'+-':>10}"]
    for name, part in sorted(found.parts.items(), key=lambda item: -abs(item[1].by)):
        half = "" if part.half is None else f"{part.half:.3f}"
        mark = " *" if part.beyond(0.0) else ""
        lines.append(f"  {name:<24}{part.a:>12.3f}{part.b:>12.3f}{part.by:>+12.3f}{half:>10}{mark}")
    return "\n".join(lines) + "\n"


def compare(a: Path, b: Path, as_json: bool) -> int:
    """Print the comparison; the exit status."""
    try:
        found = compare_runs(sources.gather([a]), sources.gather([b]))
    except sources.SourceError as error:
        print(f"nightsweep compare: {error}", file=sys.stderr)
        return EXIT_WRONG
    print(json.dumps(found.as_json(), indent=2) + "\n" if as_json else screen(found, (str(a), str(b))), end="")
    return 0
