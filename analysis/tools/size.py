"""The size of a sweep before it runs, as `nightsweep check` and a dry run show it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from nightsweep.analysis.sweep.labels import decimal, plural, short_number
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.sweep.estimate import NOTE, Estimate, Shape, estimate
from nightsweep.jobs.sweep.sweep import Sweep


def as_text(sweep: Sweep, points: bool) -> str:
    """The size in lines; a line for each point where asked for."""
    title = sweep.name + (f", preset {sweep.preset}" if sweep.preset else "")
    lines = [f"{title}: {plural(len(sweep.points), 'point')}", *cost_lines(estimate(sweep.points))]
    if sweep.design.precision is not None:
        from nightsweep.analysis.tools import expected_starts  # which loads polars

        lines += expected_starts.lines(sweep, sweep.design.precision)
    return "\n".join(lines + (listing(sweep) if points else []))


def cost_lines(cost: Estimate) -> list[str]:
    """What points cost, shape by shape and in all."""
    lines = [f"  {s.nodes} x {s.ranks_per_node} (nodes x ranks): {shape_text(s)}" for s in cost.shapes]
    gpu_hours, wall_hours = short_number(cost.gpu_hours), short_number(cost.wall_hours)
    disk = f"{decimal(cost.disk_bytes)} of disk in {cost.files:,} files"
    lines.append(f"estimate: {gpu_hours} GPU-hours, {wall_hours} h one point after another, {disk}")
    return [*lines, f"  ({NOTE})"]


def shape_text(shape: Shape) -> str:
    """The points of a shape and their GPUs."""
    points = plural(shape.points, "point")
    if not shape.gpus:
        return f"{points} on the CPU"
    return f"{points} of {plural(shape.gpus, 'GPU')}, {short_number(shape.gpu_hours)} GPU-hours"


def listing(sweep: Sweep) -> list[str]:
    """One line for each point: id and the settings that vary."""
    names = sweep.varying()
    return ["", *(f"{point.id}  {_describe(point, names)}".rstrip() for point in sweep.points)]


def _describe(point: Point, names: Sequence[str]) -> str:
    settings = point.settings()
    return " ".join(f"{name}={_shown(settings[name])}" for name in names if name in settings)


def _shown(value: Any) -> str:
    """A setting's value; a text that is empty, has spaces at an end or is not one line as JSON."""
    text = json.dumps(value, ensure_ascii=False)
    is_plain = isinstance(value, str) and text == f'"{value}"' and value.strip() == value != ""
    return value if is_plain else text


def as_json(sweep: Sweep, points: bool) -> str:
    """The same as JSON; the points only where asked for."""
    cost = estimate(sweep.points)
    shapes = [{**dataclasses.asdict(s), "gpus_in_all": s.points * s.gpus} for s in cost.shapes]
    content: dict[str, Any] = {
        "name": sweep.name,
        "preset": sweep.preset,
        "points": len(sweep.points),
        "resources": dataclasses.asdict(sweep.resources),
        "shapes": shapes,
        "estimate": {n: v for n, v in dataclasses.asdict(cost).items() if n != "shapes"} | {"note": NOTE},
    }
    if points:
        content["list"] = [{"id": p.id, "settings": p.settings()} for p in sweep.points]
    return json.dumps(content, indent=2)
