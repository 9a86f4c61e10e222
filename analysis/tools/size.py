"""The size of a sweep before it runs, as `nightsweep check` tells it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from analysis.sweep.labels import counted, decimal
from jobs.point.point import Point
from jobs.sweep.estimate import NOTE, Estimate, estimate
from jobs.sweep.sweep import Sweep


def as_text(sweep: Sweep, points: bool) -> str:
    """The size in lines; a line for each point where asked for."""
    return "\n".join(summary(sweep, estimate(sweep.points)) + (listing(sweep) if points else []))


def summary(sweep: Sweep, cost: Estimate) -> list[str]:
    """The size of a sweep in lines of text."""
    title = sweep.name + (f", preset {sweep.preset}" if sweep.preset else "")
    largest = cost.shapes[0]
    lines = [
        f"{title}: {counted(len(sweep.points), 'point')}",
        f"largest: {largest.nodes} x {largest.ranks_per_node} (nodes x ranks), {counted(largest.gpus, 'GPU')}",
    ]
    for s in cost.shapes:
        lines.append(
            f"  {s.nodes} x {s.ranks_per_node}: {counted(s.points, 'point')} of {counted(s.gpus, 'GPU')}, "
            f"{counted(s.points * s.gpus, 'GPU')} in all, {s.gpu_hours:.3g} GPU-hours"
        )
    lines.append(
        f"estimate: {cost.gpu_hours:.3g} GPU-hours, {cost.wall_hours:.3g} h one point after another, "
        f"{decimal(cost.disk_bytes)} of disk"
    )
    return [*lines, f"  ({NOTE})"]


def listing(sweep: Sweep) -> list[str]:
    """One line for each point: id and the settings that vary."""
    names = sweep.varying()
    return ["", *(f"{point.id}  {_told(point, names)}".rstrip() for point in sweep.points)]


def _told(point: Point, names: Sequence[str]) -> str:
    settings = point.settings()
    return " ".join(f"{name}={settings[name]}" for name in names if name in settings)


def as_json(sweep: Sweep, points: bool) -> str:
    """The same as JSON; the points only where asked for."""
    cost = estimate(sweep.points)
    shapes = [{**dataclasses.asdict(s), "gpus": s.gpus, "gpus_in_all": s.points * s.gpus} for s in cost.shapes]
    content: dict[str, Any] = {
        "name": sweep.name,
        "preset": sweep.preset,
        "points": len(sweep.points),
        "resources": dataclasses.asdict(sweep.resources),
        "shapes": shapes,
        "estimate": {
            "gpu_hours": cost.gpu_hours,
            "wall_hours": cost.wall_hours,
            "disk_bytes": cost.disk_bytes,
            "note": NOTE,
        },
    }
    if points:
        content["list"] = [{"id": p.id, "settings": p.settings()} for p in sweep.points]
    return json.dumps(content, indent=2)
