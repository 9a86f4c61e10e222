"""Looks for the state of least energy of particles in a trap that repel each other (variational Monte Carlo): a network
gives the logarithm of the wave function, walkers are drawn by its square, and energies at walkers tell where to go."""

import argparse

import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap


class Wave(nn.Module):
    """Particles, each of which sees the mean of all others between layers; all look alike to it."""

    def __init__(self, args):
        super().__init__()
        self.enter = nn.Linear(args.axes + 1, args.width)
        self.layers = nn.ModuleList(nn.Linear(2 * args.width, args.width) for _ in range(args.layers))
        self.leave = nn.Linear(args.width, 1)

    def forward(self, x):
        """Places of one walker: (particles, axes)."""
        squares = x.square().sum(-1, keepdim=True)
        h = torch.tanh(self.enter(torch.cat([x, squares], dim=-1)))
        for layer in self.layers:
            mean = h.mean(0, keepdim=True).expand_as(h)
            h = h + torch.tanh(layer(torch.cat([h, mean], dim=-1)))
        return 0.1 * self.leave(h).sum() - 0.5 * squares.sum()


class Energy:
    """Of walkers: how curved the wave function is, the trap, and what particles do to each other."""

    def __init__(self, model, args):
        self.model, self.way, self.count = model, args.curvature, args.particles * args.axes
        self.shape = (args.particles, args.axes)

    def log_wave(self, weights, x):
        return functional_call(self.model, weights, (x.view(self.shape),))

    def curvature(self, weights, x):
        """Sum of the second derivatives of the logarithm, and the square of the first ones."""
        slope = vmap(grad(self.log_wave, argnums=1), in_dims=(None, 0))
        axes = torch.eye(self.count, device=x.device)

        def along(axis):
            return jvp(lambda places: slope(weights, places), (x,), (axis.expand_as(x),))[1]

        if self.way == "joint":
            second = (vmap(along)(axes) * axes[:, None]).sum((0, 2))
        else:
            second = sum(along(axis)[:, number] for number, axis in enumerate(axes.unbind()))
        return second, slope(weights, x).square().sum(1)

    def __call__(self, weights, x):
        second, first = self.curvature(weights, x)
        places = x.unflatten(1, self.shape)
        gaps = (places[:, :, None] - places[:, None]).square().sum(-1)
        repulsion = torch.exp(-2 * gaps).sum((1, 2)) - self.shape[0]
        return -0.5 * (second + first) + 0.5 * x.square().sum(1) + repulsion


def walk(wave, weights, x, moves, width, draw):
    """Metropolis: each walker goes where the wave function is larger, and now and then where it is smaller."""
    now = wave(weights, x)
    for _ in range(moves):
        other = x + width * torch.randn(x.shape, generator=draw, device=x.device)
        then = wave(weights, other)
        chance = torch.rand(now.shape, generator=draw, device=x.device).log()
        goes = chance < 2 * (then - now)
        x, now = torch.where(goes[:, None], other, x), torch.where(goes, then, now)
    return x


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--particles", type=int, default=6)
    parser.add_argument("--axes", type=int, default=2, help="of space")
    parser.add_argument("--walkers", type=int, default=8192)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--moves", type=int, default=5, help="of walkers between steps")
    parser.add_argument("--curvature", choices=["each", "joint"], default="joint", help="by one axis, or by all axes")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1761)
    with device:
        model = Wave(args)
    optimizer = torch.optim.Adam(model.parameters(), args.lr, fused=True)
    energy = Energy(model, args)
    logs = vmap(energy.log_wave, in_dims=(None, 0))
    draw = torch.Generator(device).manual_seed(1762)
    x = torch.randn(args.walkers, args.particles * args.axes, generator=draw, device=device)
    for step in range(1, 10_000_000):
        weights = {name: weight.detach() for name, weight in model.named_parameters()}
        with torch.no_grad():
            x = walk(logs, weights, x, args.moves, 0.3, draw)
            energies = energy(weights, x)
            middle = energies.median()
            spread = (energies - middle).abs().mean()
            kept = energies.clamp(middle - 5 * spread, middle + 5 * spread)
            pull = 2 * (kept - kept.mean())
        loss = (pull * vmap(model)(x.unflatten(1, energy.shape))).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: energy {energies.mean().item():.5f}", flush=True)


if __name__ == "__main__":
    main()
