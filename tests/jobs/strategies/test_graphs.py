"""Recorded steps, as far as they need no GPU."""

from contextlib import nullcontext
from types import SimpleNamespace

import torch
from torch import nn

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.rank.checkpoint import state_of
from nightsweep.jobs.strategies.graphs import GraphTrainer
from nightsweep.jobs.strategies.make import make_trainer
from nightsweep.jobs.workloads.base import Work

CPU = torch.device("cpu")


def test_epochs_of_recorded_steps_can_be_kept(monkeypatch):
    """Recording takes a GPU; a trainer that has not recorded yet takes its streams alone."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, value in {"Stream": lambda: stream, "current_stream": lambda: stream, "stream": nullcontext}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    point = complete({"workload": "image", "model": "mobilenet_v2", "device": "cpu", "strategy": "local_sgd"})
    work = Work(nn.Linear(2, 2), None, dict, lambda network, batch: network(batch["x"]).sum(), (), None)
    inner = make_trainer(point, work, CPU)
    recorded = GraphTrainer(lambda: inner, torch.device("cuda"))
    assert state_of(recorded, CPU)["optimizer"] == state_of(inner, CPU)["optimizer"]
