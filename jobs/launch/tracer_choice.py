"""Which tracer a point is traced with, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nightsweep.jobs.point import plan
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.telemetry.trace import nsys


@dataclass(frozen=True)
class Choice:
    """Which tracer the traced run uses (None: there is no such run), and why."""

    tracer: Literal["nsys", "kineto"] | None
    why: str
    version: str | None = None
    no_gpu_metrics: str | None = None


def choose_tracer(point: Point, cuda: bool) -> Choice:
    """The PyTorch profiler, unless nsys is asked for, works, and has something to see."""
    if point.traced_steps == 0:
        return Choice(None, "the point asks for no trace")
    if plan.is_one_start(point):
        return Choice("kineto", "in the start that was timed")
    if point.tracer == "kineto":
        return Choice("kineto", "the point asks for it")
    if not cuda:
        return Choice("kineto", "ranks compute on the CPU, where nsys would see no kernels")
    if point.launcher == "none" and point.ranks_per_node > 1:
        return Choice("kineto", "the script starts its ranks itself, which nsys would not tell apart")
    found = nsys.probe(point.trace_preset)
    if not found.works:
        return Choice("kineto", found.text)
    why = f"{found.text}; no GPU metrics: {found.no_gpu_metrics}" if found.no_gpu_metrics else found.text
    return Choice("nsys", why, found.text, found.no_gpu_metrics)
