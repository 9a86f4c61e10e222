"""Tells how high the sea will stand at many gauges from wind, pressure and the last tides: a residual network reads the
weather, and layers of learned curves (Kolmogorov-Arnold: a cubic spline from each value to each other one) make the
levels of it."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn

DEGREE = 3


def bases(x, knots):
    """Of each value, those splines that are not zero there, by the recursion of Cox and de Boor."""
    x = x.unsqueeze(-1)
    found = ((x >= knots[:-1]) & (x < knots[1:])).to(x.dtype)
    for degree in range(1, DEGREE + 1):
        left = (x - knots[: -(degree + 1)]) / (knots[degree:-1] - knots[: -(degree + 1)])
        right = (knots[degree + 1 :] - x) / (knots[degree + 1 :] - knots[1:-degree])
        found = left * found[..., :-1] + right * found[..., 1:]
    return found


class Curves(nn.Module):
    def __init__(self, enter, leave, args):
        super().__init__()
        step = 2 / args.pieces
        self.register_buffer("knots", torch.arange(-DEGREE, args.pieces + DEGREE + 1) * step - 1)
        self.straight = nn.Linear(enter, leave)
        self.curved = nn.Linear(enter * (args.pieces + DEGREE), leave, bias=False)
        self.bases = torch.compile(bases) if args.splines == "compiled" else bases

    def forward(self, x):
        x = torch.tanh(x)
        return self.straight(F.silu(x)) + self.curved(self.bases(x, self.knots).flatten(1))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.net = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.net(self.norm(x))


class Gauges(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enter = nn.Linear(args.weather, args.width)
        self.trunk = nn.Sequential(*(Block(args.width) for _ in range(args.blocks)))
        self.narrow = nn.Linear(args.width, args.narrow)
        self.curves = nn.Sequential(
            *(Curves(args.narrow, args.narrow, args) for _ in range(args.curves - 1)),
            Curves(args.narrow, args.gauges, args),
        )

    def forward(self, weather):
        return self.curves(self.narrow(self.trunk(self.enter(weather))))


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(2201)
    model = Gauges(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
    days = []
    for _ in range(3):
        weather = torch.randn(args.batch, args.weather, device=device)
        days.append((weather, torch.randn(args.batch, args.gauges, device=device)))
    for step, (weather, levels) in enumerate(itertools.cycle(days), 1):
        loss = F.huber_loss(model(weather), levels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weather", type=int, default=2048, help="numbers about it")
    parser.add_argument("--gauges", type=int, default=200)
    parser.add_argument("--pieces", type=int, default=8, help="of a curve")
    parser.add_argument("--splines", choices=["eager", "compiled"], default="eager")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--narrow", type=int, default=256, help="width of curves")
    parser.add_argument("--curves", type=int, default=2, help="layers of them")
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
