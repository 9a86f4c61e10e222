"""Gradients of which the largest alone are sent: nothing is lost but put off."""

import torch
from torch.nn.parallel import DistributedDataParallel

from nightsweep.jobs.strategies.ddp import compress
from nightsweep.jobs.strategies.top_k import PLAIN_STEPS


def test_what_a_step_leaves_out_is_sent_later(alone):
    plain = torch.nn.Linear(40, 50, bias=False)
    model = DistributedDataParallel(plain)
    compress(model, "topk")
    left = torch.zeros_like(plain.weight)
    for step in range(PLAIN_STEPS + 4):
        batch = torch.randn(8, 40)
        (own,) = torch.autograd.grad(plain(batch).square().mean(), plain.weight)
        model.zero_grad()
        model(batch).square().mean().backward()
        wanted, sent = own + left, plain.weight.grad
        least = wanted.abs().flatten().topk(20).values[-1] if step >= PLAIN_STEPS else 0  # a hundredth of 2,000
        assert torch.allclose(sent, wanted * (wanted.abs() >= least), atol=1e-7)
        left = wanted - sent
