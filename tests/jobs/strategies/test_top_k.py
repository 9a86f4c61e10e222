"""Gradients of which the largest alone are sent: nothing is lost but put off."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nightsweep.jobs.strategies.ddp import compress
from nightsweep.jobs.strategies.top_k import PLAIN_STEPS, TopK


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


class Bucket:
    """One of DDP's, the only one of a step."""

    def __init__(self, gradients):
        self.gradients = gradients

    def index(self):
        return 0

    def buffer(self):
        return self.gradients

    def is_last(self):
        return True


def test_all_ranks_have_the_mean_of_what_each_sends(monkeypatch):
    """Two ranks in one process: what one sends the other is given with its own."""
    own = torch.arange(200.0)
    other = torch.arange(200.0).flip(0) * 2
    sent = []

    def gather(messages, message, async_op):
        sent.append(message)
        for place, one in zip(messages, (sent * 2)[-2:], strict=True):
            place.copy_(one)
        done = torch.futures.Future()
        done.set_result(messages)
        return type("Work", (), {"get_future": lambda self: done})()

    monkeypatch.setattr(dist, "all_gather", gather)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    for gradients in (other, own):
        hook = TopK()
        hook.step = PLAIN_STEPS
        mean = hook.send(Bucket(gradients.clone())).wait()
    expected = torch.zeros(200)
    expected[[198, 199]] = own[[198, 199]] / 2
    expected[[0, 1]] = other[[0, 1]] / 2
    assert torch.equal(mean, expected)
