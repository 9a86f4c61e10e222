"""torch.compile of layers one by one."""

import torch

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.workloads import compute
from nightsweep.jobs.workloads.base import Work
from tests.jobs.strategies.strategy_run import CPU


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.product = torch.nn.Linear(width, width)

    def forward(self, x):
        return torch.nn.functional.dropout(self.product(x), 0.1, self.training)


def test_layers_of_many_shapes_are_each_compiled_for_their_own(monkeypatch):
    """Twelve, beyond what PyTorch compiles of one code before it falls back, in training and in evaluation; none for
    any shape, which fails for convolutions."""
    real, symbols = torch.compile, []

    def backend(graph, inputs):
        symbols.append(any(isinstance(each, torch.SymInt) for each in inputs))
        return graph

    monkeypatch.setattr(torch, "compile", lambda forward, mode, **options: real(forward, backend=backend, **options))
    torch._dynamo.reset()
    layers = tuple(Block(width) for width in range(8, 20))
    settings = {"workload": "image", "model": "resnet50", "image_size": 32, "strategy": "fsdp2", "compile": "default"}
    work = Work(torch.nn.ModuleList(layers), None, None, None, layers, tokens_per_sample=None)
    with torch._dynamo.config.patch(recompile_limit=8):
        compute.compile_model(complete(CPU | settings), work)
        for training in (True, False):
            for layer in layers:
                width = layer.product.in_features
                layer.train(training)(torch.zeros(width, width))
    assert symbols == [False] * 24
