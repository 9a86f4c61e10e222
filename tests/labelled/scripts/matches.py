"""Learns which points of two pictures are the same place (as SuperGlue): points attend to those of their own picture
and of the other one in turn, and likenesses become matches by optimal transport, with a bin for points that have no
match."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    """Each point attends to others, and is updated by what it learns and is."""

    def __init__(self, width, attend_in):
        super().__init__()
        self.heads, self.attend_in = width // 64, attend_in
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.up, self.norm, self.down = (
            nn.Linear(2 * width, 2 * width),
            nn.LayerNorm(2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x, source):
        q = self.q(x).unflatten(-1, (self.heads, 64)).transpose(1, 2)
        k, v = self.kv(source).unflatten(-1, (2, self.heads, 64)).permute(2, 0, 3, 1, 4)
        if self.attend_in == "fp32":  # so that softmax does not overflow
            with torch.autocast(x.device.type, enabled=False):
                h = F.scaled_dot_product_attention(q.float(), k.float(), v.float())
        else:
            h = F.scaled_dot_product_attention(q, k, v)
        h = self.out(h.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.norm(self.up(torch.cat([x, h], dim=-1)))))


def turn(scores, rows, columns, v):
    """One turn of optimal transport: rows are to sum up to what they should, then columns."""
    u = rows - torch.logsumexp(scores + v[:, None], dim=2)
    return u, columns - torch.logsumexp(scores + u[:, :, None], dim=1)


class Matcher(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.turns = args.turns
        self.turn = torch.compile(turn) if args.sinkhorn == "compiled" else turn
        self.place = nn.Sequential(nn.Linear(3, 64), nn.GELU(), nn.Linear(64, args.width))
        self.own = nn.ModuleList(Layer(args.width, args.attend_in) for _ in range(args.layers))
        self.other = nn.ModuleList(Layer(args.width, args.attend_in) for _ in range(args.layers))
        self.last = nn.Linear(args.width, args.width)
        self.bin = nn.Parameter(torch.ones(()))

    def forward(self, features, places):
        """Of both pictures, one after the other in the batch."""
        x = features + self.place(places)
        for own, other in zip(self.own, self.other, strict=True):
            x = own(x, x)
            x = other(x, torch.cat(x.chunk(2)[::-1]))
        first, second = self.last(x).chunk(2)
        return first @ second.transpose(1, 2) / math.sqrt(x.shape[-1])

    def transport(self, likeness):
        """Logarithms of how much of each point goes to each, or into the bin."""
        batch, n, _ = likeness.shape
        scores = F.pad(likeness, (0, 1, 0, 1))
        edge = torch.zeros_like(scores[0])
        edge[-1], edge[:, -1] = 1.0, 1.0
        scores = scores + edge * self.bin
        goal = torch.full((n + 1,), -math.log(2 * n), device=scores.device)
        goal[-1] = math.log(n) - math.log(2 * n)
        goal = goal.expand(batch, -1)
        v = torch.zeros_like(goal)
        for _ in range(self.turns):
            u, v = self.turn(scores, goal, goal, v)
        return scores + u[:, :, None] + v[:, None] + math.log(2 * n)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1831)
    model = Matcher(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
    shape = (2 * args.batch, args.points)
    pictures = []
    for _ in range(3):
        features, places = torch.randn(*shape, args.width, device=device), torch.rand(*shape, 3, device=device)
        pictures.append((features, places, torch.rand(args.batch, args.points, device=device).argsort(1)))
    for step in range(1, 10_000_000):
        features, places, same = pictures[step % len(pictures)]
        with torch.autocast(device.type, torch.bfloat16):
            likeness = model(features, places)
        goes = model.transport(likeness.float())
        loss = -goes[:, :-1].gather(2, same[..., None]).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=1024, help="of a picture")
    parser.add_argument("--batch", type=int, default=16, help="pairs of pictures")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=9, help="of each kind")
    parser.add_argument("--attend-in", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--turns", type=int, default=50, help="of optimal transport")
    parser.add_argument("--sinkhorn", choices=["eager", "compiled"], default="eager", help="how a turn is run")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
