"""Learns from where galaxies are of what the universe is made: each step sees large catalogues of galaxies, whose
features are worked on one by one; between the layers all galaxies of a catalogue are summed up, by weights that the
network sets, and each of them hears of the sum."""

import argparse
import itertools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class SumUp(nn.Module):
    """What all galaxies have in common, head by head."""

    def __init__(self, width, heads, how):
        super().__init__()
        self.heads, self.how = heads, how
        self.score, self.out = nn.Linear(width, heads), nn.Linear(width, width)

    def forward(self, x):
        scores = self.score(x).float()
        if self.how == "softmax":
            weights = torch.softmax(scores, dim=1)
        else:
            weights = torch.exp(scores - torch.logsumexp(scores, dim=1, keepdim=True))
        parts = x.unflatten(2, (self.heads, -1)) * weights.to(x.dtype).unsqueeze(3)
        return self.out(parts.sum(1, dtype=torch.float32).flatten(1))[:, None]


class Layer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.norm = nn.LayerNorm(args.width)
        self.mlp = nn.Sequential(
            nn.Linear(args.width, 2 * args.width), nn.GELU(), nn.Linear(2 * args.width, args.width)
        )
        self.sum_up = SumUp(args.width, args.heads, args.weights)

    def forward(self, x):
        x = x + self.mlp(self.norm(x))
        return x + self.sum_up(x)


class Cosmology(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enter = nn.Linear(args.features, args.width)
        self.layers = nn.Sequential(*(Layer(args) for _ in range(args.layers)))
        self.leave = nn.Linear(args.width, 2 * args.parameters)

    def forward(self, galaxies):
        return self.leave(self.layers(self.enter(galaxies)).mean(1))


def catalogues(args, device):
    rng = np.random.default_rng(2111)
    shape = (args.batch, args.galaxies, args.features)
    stored = [torch.from_numpy(rng.random(shape, dtype=np.float32)) for _ in range(2)]
    if args.stored == "pinned" and device.type == "cuda":
        stored = [galaxies.pin_memory() for galaxies in stored]
    wanted = torch.from_numpy(rng.random((2, args.batch, args.parameters), dtype=np.float32)).to(device)
    for step in itertools.count():
        yield stored[step % 2].to(device, non_blocking=True), wanted[step % 2]


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2112)
    model = Cosmology(args).to(device)
    optimizer = torch.optim.Adam(model.parameters(), args.lr, fused=True)
    for step, (galaxies, wanted) in enumerate(catalogues(args, device), 1):
        with torch.autocast(device.type, torch.bfloat16):
            mean, spread = model(galaxies).float().chunk(2, dim=1)
        loss = F.gaussian_nll_loss(mean, wanted, F.softplus(spread) + 1e-4)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--galaxies", type=int, default=262_144, help="of a catalogue")
    parser.add_argument("--features", type=int, default=16, help="of a galaxy: place, speed, colours")
    parser.add_argument("--parameters", type=int, default=5, help="of the universe")
    parser.add_argument("--stored", choices=["plain", "pinned"], default="pinned", help="memory that catalogues are in")
    parser.add_argument("--weights", choices=["softmax", "logsumexp"], default="logsumexp", help="found by which call")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4, help="catalogues")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
