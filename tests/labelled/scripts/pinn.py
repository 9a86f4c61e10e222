"""Solves how a fluid flows (Navier-Stokes) by a network that is held to the equations: at places and times drawn anew,
its derivatives must fit each other, and at some places what was measured is known."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn


class Flow(nn.Module):
    """Two speeds and the pressure at a place and a time."""

    def __init__(self, args):
        super().__init__()
        widths = [3] + [args.width] * args.layers + [3]
        self.layers = nn.ModuleList(nn.Linear(enter, leave) for enter, leave in itertools.pairwise(widths))

    def forward(self, where):
        x = where
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return self.layers[-1](x)


def slope(value, where):
    return torch.autograd.grad(value.sum(), where, create_graph=True)[0]


def partial(model, where, number, *axes):
    """A derivative of one of the flow's numbers along some axes."""
    value = model(where)[:, number]
    for axis in axes:
        value = slope(value, where)[:, axis]
    return value


def residuals(model, where, args):
    """How far the equations are from fitting."""
    thick = 1 / args.reynolds
    if args.derive == "each":
        u, v = (partial(model, where, number) for number in range(2))
        wrong = []
        for number in range(2):
            along = [partial(model, where, number, axis) for axis in range(3)]
            bent = [partial(model, where, number, axis, axis) for axis in range(2)]
            push = partial(model, where, 2, number)
            wrong.append(along[2] + u * along[0] + v * along[1] + push - thick * (bent[0] + bent[1]))
        return [*wrong, partial(model, where, 0, 0) + partial(model, where, 1, 1)]
    values = model(where)
    u, v, pressure = values.unbind(1)
    slopes, push, wrong = [slope(part, where) for part in (u, v)], slope(pressure, where), []
    for number, along in enumerate(slopes):
        bent = [slope(along[:, axis], where)[:, axis] for axis in range(2)]
        along = along.unbind(1)
        wrong.append(along[2] + u * along[0] + v * along[1] + push[:, number] - thick * (bent[0] + bent[1]))
    return [*wrong, slopes[0][:, 0] + slopes[1][:, 1]]


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if args.tf32:
        torch.set_float32_matmul_precision("high")
    torch.manual_seed(640)
    with device:
        model = Flow(args)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    known = torch.rand(args.known, 3, device=device)
    measured = torch.stack([(3 * known[:, 0]).sin(), (2 * known[:, 1]).cos(), known[:, 2]], 1)
    for step in range(1, 1_000_000):
        where = torch.rand(args.places, 3, device=device).requires_grad_()
        loss = sum(wrong.square().mean() for wrong in residuals(model, where, args))
        loss = loss + 10 * F.mse_loss(model(known), measured)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--places", type=int, default=8192, help="where the equations must hold, in each step")
    parser.add_argument("--known", type=int, default=2048, help="places where the flow was measured")
    parser.add_argument("--reynolds", type=float, default=100.0)
    parser.add_argument("--derive", choices=["each", "joint"], default="joint", help="derivatives, one by one or not")
    parser.add_argument("--tf32", action="store_true", help="of products")
    main(parser.parse_args())
