"""A point's strategy, made around its workload."""

from __future__ import annotations

import torch

from jobs.point.point import Point
from jobs.strategies.base import Trainer
from jobs.workloads import compute
from jobs.workloads.base import Work


def make_trainer(point: Point, work: Work, device: torch.device) -> Trainer:
    """The point's strategy around its workload. Raises Unsupported where the host cannot give it."""
    compute.compile_model(point, work)
    if point.cuda_graph:
        from jobs.strategies.graphs import GraphTrainer

        return GraphTrainer(lambda: _trainer(point, work, device), device)
    return _trainer(point, work, device)


def _trainer(point: Point, work: Work, device: torch.device) -> Trainer:
    # Each is imported when it is asked for: DeepSpeed and DTensor take seconds.
    match point.strategy:
        case "ddp" | "ddp_ds":
            from jobs.strategies.ddp import DdpTrainer

            return DdpTrainer(point, work, device)
        case "dp":
            from jobs.strategies.data_parallel import DpTrainer

            return DpTrainer(point, work, device)
        case "local_sgd":
            from jobs.strategies.local_sgd import LocalSgdTrainer

            return LocalSgdTrainer(point, work, device)
        case "fsdp2":
            from jobs.strategies.fsdp import Fsdp2Trainer

            return Fsdp2Trainer(point, work, device)
        case "tp":
            from jobs.strategies.tensor import TpTrainer

            return TpTrainer(point, work, device)
        case "pp":
            from jobs.strategies.pipeline import PpTrainer

            return PpTrainer(point, work, device)
        case _:
            from jobs.strategies.zero import ZeroTrainer

            return ZeroTrainer(point, work, device)
