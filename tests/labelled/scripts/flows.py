"""Fits a latent ODE (torchdiffeq) to series that last differently long: encoded, integrated over its time, decoded."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torchdiffeq import odeint, odeint_adjoint

READINGS = 96


class Field(nn.Module):
    """The derivative of the states, each by its own time."""

    def __init__(self, latent, width, depth):
        super().__init__()
        sizes = [latent + 1, *[width] * depth, latent]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, time, state):
        x = torch.cat((time[:, None], state), 1)
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return self.layers[-1](x)


class Stretched(nn.Module):
    """The field over a time from 0 to 1, whatever the series last."""

    def __init__(self, field, lasts):
        super().__init__()
        self.field, self.lasts = field, lasts

    def forward(self, part, state):
        return self.lasts[:, None] * self.field(part * self.lasts, state).to(state.dtype)


class LatentODE(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(READINGS, args.width), nn.GELU(), nn.Linear(args.width, args.latent))
        self.field = Field(args.latent, args.width, args.depth)
        self.decoder = nn.Sequential(nn.Linear(args.latent, args.width), nn.GELU(), nn.Linear(args.width, READINGS))
        self.solve = {"each": self.each, "together": self.together}[args.solve]
        self.adjoint = args.adjoint
        self.register_buffer("grid", torch.linspace(0, 1, args.steps + 1))

    def together(self, state, lasts):
        solver = odeint_adjoint if self.adjoint else odeint
        return solver(Stretched(self.field, lasts), state, self.grid, method="rk4")[-1]

    def each(self, state, lasts):
        """Series by series, since each ends at a time of its own."""
        return torch.cat([self.together(state[n : n + 1], lasts[n : n + 1]) for n in range(len(state))])

    def forward(self, series, lasts):
        return self.decoder(self.solve(self.encoder(series).float(), lasts))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latent", type=int, default=128)
    parser.add_argument("--width", type=int, default=2048, help="of the field")
    parser.add_argument("--depth", type=int, default=3, help="hidden layers of the field")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=10, help="of the solver (Runge-Kutta of fourth order)")
    parser.add_argument("--solve", choices=["each", "together"], default="together")
    parser.add_argument("--adjoint", action="store_true", help="solve backwards instead of keeping the states")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="fp32")
    parser.add_argument("--compile", action="store_true", help="the field, which is most of the work")
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    if args.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    torch.manual_seed(81)
    model = LatentODE(args).to(device)
    if args.compile:
        model.field.compile()
    optimizer = torch.optim.Adamax(model.parameters(), lr=1e-5, foreach=True)
    series, lasts = torch.randn(16, args.batch, READINGS), 0.5 + torch.rand(16, args.batch)
    if cuda:
        series, lasts = series.pin_memory(), lasts.pin_memory()
    for step in itertools.count(1):
        now = series[step % 16].to(device, non_blocking=True)
        until = lasts[step % 16].to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "bf16"):
            found = model(now, until)
        loss = F.mse_loss(found.float(), now)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
