"""Says what molecules smell of: a residual network reads a molecule's fingerprint, and each scent (musk, rose, smoke
and so on) has its small head, which raters did not judge on every molecule."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        self.enter, self.leave = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.dropout(self.leave(F.silu(self.enter(self.norm(x)))))


class Nose(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enter = nn.Linear(args.bits, args.width)
        self.blocks = nn.Sequential(*(Block(args.width, args.dropout) for _ in range(args.layers)))
        self.norm = nn.LayerNorm(args.width)
        self.narrow = nn.Linear(args.width, args.narrow)
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(args.narrow, args.narrow // 4), nn.ReLU(), nn.Linear(args.narrow // 4, 1))
            for _ in range(args.scents)
        )

    def forward(self, fingerprints):
        x = F.relu(self.narrow(self.norm(self.blocks(self.enter(fingerprints)))))
        return torch.cat([head(x) for head in self.heads], dim=1)


def learner(weights, args):
    """Weights of products decay, biases and norms do not."""
    weights = list(weights)
    groups = [
        {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": 0.01},
        {"params": [weight for weight in weights if weight.ndim < 2], "weight_decay": 0.0},
    ]
    how = {"each": {"foreach": False}, "fused": {"fused": True}}[args.update]
    return torch.optim.AdamW(groups, args.lr, **how)


def molecules(args, device):
    fingerprints = (torch.rand(args.batch, args.bits, device=device) < 0.05).float()
    smells = (torch.rand(args.batch, args.scents, device=device) < 0.1).float()
    judged = (torch.rand(args.batch, args.scents, device=device) < 0.6).float()
    return fingerprints, smells, judged


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2260)
    model = Nose(args).to(device)
    optimizer = learner(model.parameters(), args)
    shelf = [molecules(args, device) for _ in range(3)]
    recent, best = 0.0, float("inf")
    for step, (fingerprints, smells, judged) in enumerate(itertools.cycle(shelf), 1):
        with torch.autocast(device.type, torch.bfloat16, enabled=args.amp):
            scores = model(fingerprints)
        losses = F.binary_cross_entropy_with_logits(scores.float(), smells, reduction="none")
        loss = (losses * judged).sum() / judged.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        now = loss.item()
        recent = 0.98 * recent + 0.02 * now
        best = min(best, now)
        if step % args.print_every == 0:
            print(f"step {step}: loss {now:.4f} recent {recent:.4f} best {best:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bits", type=int, default=2048, help="of a fingerprint")
    parser.add_argument("--scents", type=int, default=138)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--narrow", type=int, default=256, help="what heads see")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--update", choices=["each", "fused"], default="fused")
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
