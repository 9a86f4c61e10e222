"""Trains an optimizer: a small network sees the gradient and the momentum of each weight of a task, and says how to
change the weight. It is judged by how the losses of many tasks fall over some steps that are unrolled."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn

DECAYS = (0.5, 0.9, 0.99)


class Rule(nn.Module):
    """For each weight by itself: a direction and a size from its gradient, its value, and momenta of several paces."""

    def __init__(self, args):
        super().__init__()
        seen = 2 * (2 + len(DECAYS))
        self.body = nn.Sequential(
            nn.Linear(seen, args.hidden), nn.ReLU(), nn.Linear(args.hidden, args.hidden), nn.ReLU()
        )
        self.out = nn.Linear(args.hidden, 2)

    def forward(self, weight, gradient, momenta):
        momenta = [decay * old + (1 - decay) * gradient for decay, old in zip(DECAYS, momenta, strict=True)]
        seen = torch.stack([weight, gradient, *momenta], -1)
        seen = torch.cat([seen.sign(), (seen.abs() + 1e-8).log() / 10], -1)
        way, size = self.out(self.body(seen)).unbind(-1)
        return weight - 0.01 * way * (0.1 * size).exp(), momenta


class Tasks:
    """Regressions, each with another network; all are worked on at once."""

    def __init__(self, args, device):
        self.args, self.device = args, device
        sizes = [args.inputs] + [args.width] * args.deep + [1]
        self.shapes = []
        for enter, leave in itertools.pairwise(sizes):
            self.shapes += [(enter, leave), (1, leave)]
        self.counts = [high * wide for high, wide in self.shapes]

    def drawn(self):
        rows = torch.randn(self.args.tasks, self.args.rows, self.args.inputs, device=self.device)
        way = torch.randn(self.args.tasks, self.args.inputs, 1, device=self.device)
        weights = [
            torch.randn(self.args.tasks, high * wide, device=self.device) * (high**-0.5 if high > 1 else 0.01)
            for high, wide in self.shapes
        ]
        return rows, (rows @ way / 4).sin(), weights

    def loss(self, weights, rows, right):
        x, layers = rows, len(weights) // 2
        for layer in range(layers):
            matrix, shift = (weights[place].unflatten(1, self.shapes[place]) for place in (2 * layer, 2 * layer + 1))
            x = torch.baddbmm(shift, x, matrix)
            if layer < layers - 1:
                x = F.relu(x)
        return F.mse_loss(x, right)


def unrolled(rule, tasks, args):
    """Mean loss of the tasks after each of some steps of the rule."""
    rows, right, weights = tasks.drawn()
    if args.weights == "flat":
        weights = torch.cat(weights, 1)
        momenta = [torch.zeros_like(weights) for _ in DECAYS]
    else:
        momenta = [[torch.zeros_like(weight) for _ in DECAYS] for weight in weights]
    total = 0.0
    for _ in range(args.unroll):
        # gradients count as given
        if args.weights == "flat":
            known = weights.detach().requires_grad_()
            loss = tasks.loss(known.split(tasks.counts, 1), rows, right)
            (gradient,) = torch.autograd.grad(loss, known)
            weights, momenta = rule(weights, gradient, momenta)
            total = total + tasks.loss(weights.split(tasks.counts, 1), rows, right)
        else:
            known = [weight.detach().requires_grad_() for weight in weights]
            gradients = torch.autograd.grad(tasks.loss(known, rows, right), known)
            changed = [rule(*own) for own in zip(weights, gradients, momenta, strict=True)]
            weights, momenta = [weight for weight, _ in changed], [momentum for _, momentum in changed]
            total = total + tasks.loss(weights, rows, right)
    return total / args.unroll


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(580)
    with device:
        rule = Rule(args)
    optimizer = torch.optim.AdamW(rule.parameters(), lr=1e-4, fused=True)
    tasks = Tasks(args, device)
    for step in range(1, 1_000_000):
        loss = unrolled(rule, tasks, args)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(rule.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=96)
    parser.add_argument("--rows", type=int, default=128, help="of each task")
    parser.add_argument("--inputs", type=int, default=16)
    parser.add_argument("--width", type=int, default=64, help="of a task's network")
    parser.add_argument("--deep", type=int, default=7, help="layers of it, but for the last one")
    parser.add_argument("--hidden", type=int, default=32, help="width of the rule's network")
    parser.add_argument("--unroll", type=int, default=10, help="steps of the tasks")
    parser.add_argument("--weights", choices=["flat", "tensors"], default="flat", help="as the rule sees them")
    main(parser.parse_args())
