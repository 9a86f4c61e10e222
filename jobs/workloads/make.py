"""A point's workload, made."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.point.workloads import WORKLOADS
from nightsweep.jobs.record.heartbeat import Heartbeat
from nightsweep.jobs.workloads.base import Work


def prepare_data(point: Point, heart: Heartbeat) -> None:
    """Make on disk what the data set is read from; may take minutes, in which the heart beats."""
    if prepare := getattr(module(point), "prepare_data", None):
        prepare(point, heart.pulse)


def build(point: Point, device: torch.device | None = None) -> Work:
    """The point's workload. Weights follow the seed alone, so that every rank and strategy starts from the same. A
    language model is made on `device` (None: the CPU), where 8B weights take seconds and not minutes."""
    torch.manual_seed(point.seed + point.repeat)
    with torch.device(device if device and WORKLOADS[point.workload].on_device else "cpu"):
        work: Work = module(point).build(point)
    return work


def module(point: Point) -> Any:
    """The module of the point's workload (`nightsweep.jobs.point.workloads.Workload.module`)."""
    return importlib.import_module(f"nightsweep.jobs.workloads.{WORKLOADS[point.workload].module}")
