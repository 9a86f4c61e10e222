"""Learns to write by hand: a recurrent network reads where the pen went, and says by a mixture of normal distributions
where it goes next, and whether it is lifted."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn


class Writer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.recurrence, self.components = args.recurrence, args.components
        self.lstm = nn.LSTM(3, args.width, args.layers, batch_first=True)
        self.norm, self.out = nn.LayerNorm(args.width), nn.Linear(args.width, 6 * args.components + 1)

    def states(self, x):
        if self.recurrence == "layers":
            return self.lstm(x)[0]
        for layer in range(self.lstm.num_layers):
            weights = self.lstm.all_weights[layer]
            hidden = cell = x.new_zeros(len(x), self.lstm.hidden_size)
            seen = []
            for now in x.unbind(1):
                hidden, cell = torch.lstm_cell(now, (hidden, cell), *weights)
                seen.append(hidden)
            x = torch.stack(seen, 1)
        return x

    def forward(self, strokes):
        found = self.out(self.norm(self.states(strokes))).float()
        return found[..., :-1].unflatten(-1, (6, self.components)).unbind(-2), found[..., -1]


def unlikely(mixture, lifted, wanted):
    """Negative logarithm of the density of where the pen went, and of whether it was lifted."""
    share, x, y, wide, high, lean = mixture
    lean = lean.tanh() * 0.95
    right, down = ((wanted[..., place, None] - mean) for place, mean in ((0, x), (1, y)))
    right, down = right * (-wide).exp(), down * (-high).exp()
    rest = 1 - lean.square()
    apart = (right.square() + down.square() - 2 * lean * right * down) / (2 * rest)
    density = -apart - wide - high - 0.5 * rest.log() - math.log(2 * math.pi)
    place = -torch.logsumexp(density + share.log_softmax(-1), -1)
    return (place + F.binary_cross_entropy_with_logits(lifted, wanted[..., 2], reduction="none")).mean()


def lines(args, device):
    """Of writing: how far the pen went, and whether it was lifted."""
    moved = torch.randn(args.batch, args.length + 1, 2, device=device)
    lifted = (torch.rand(args.batch, args.length + 1, 1, device=device) < 0.05).float()
    return torch.cat([moved, lifted], -1)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(570)
    with device:
        model = Writer(args).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = [lines(args, device) for _ in range(4)]
    for step in range(1, 1_000_000):
        strokes = batches[step % len(batches)]
        mixture, lifted = model(strokes[:, :-1].bfloat16())
        loss = unlikely(mixture, lifted, strokes[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--components", type=int, default=20)
    parser.add_argument("--length", type=int, default=256, help="of a line, in moves of the pen")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--recurrence", choices=["layers", "cells"], default="layers", help="how it is run")
    main(parser.parse_args())
