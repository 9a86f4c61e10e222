"""The optimizer's settings, seen in a step whose gradients are zero."""

import pytest
import torch

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.strategies.optimizer import make_optimizer
from tests.jobs.strategies.strategy_run import NANO


@pytest.mark.parametrize(
    ("optimizer", "decay", "kept"), [("adamw", None, 0.999), ("adamw", 0, 1), ("sgd", None, 1), ("sgd", 2, 0.8)]
)
def test_weight_decay_shrinks_weights_and_is_else_torchs_own(optimizer, decay, kept):
    model = torch.nn.Linear(3, 3)
    before = model.weight.detach().clone()
    settings = {"optimizer": optimizer, "learning_rate": 0.1, "weight_decay": decay}
    own = make_optimizer(complete(NANO | settings), model)
    model.weight.grad = torch.zeros_like(before)
    own.step()
    assert torch.allclose(model.weight, before * kept)
