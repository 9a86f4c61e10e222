"""A point's strategy, made around its workload."""

from __future__ import annotations

import importlib

import torch

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.point.strategies import STRATEGIES
from nightsweep.jobs.strategies.base import Trainer
from nightsweep.jobs.workloads import compute
from nightsweep.jobs.workloads.base import Work


def make_trainer(point: Point, work: Work, device: torch.device) -> Trainer:
    """The point's strategy around its workload. Raises Unsupported where the host cannot give it."""
    compute.compile_model(point, work)
    if point.cuda_graph:
        from nightsweep.jobs.strategies.graphs import GraphTrainer

        return GraphTrainer(lambda: _trainer(point, work, device), device)
    return _trainer(point, work, device)


def _trainer(point: Point, work: Work, device: torch.device) -> Trainer:
    # Imported when it is asked for: DeepSpeed and DTensor take seconds.
    module, _, name = STRATEGIES[point.strategy].trainer.partition(":")
    made: Trainer = getattr(importlib.import_module(f"nightsweep.jobs.strategies.{module}"), name)(point, work, device)
    return made
