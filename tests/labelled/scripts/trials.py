"""Finds clinical trials for patients: one network reads what is known of a patient, another what a trial asks for, and
each must find its own among all of a large batch, either way (contrastive)."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.net = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.net(self.norm(x))


class Tower(nn.Module):
    def __init__(self, features, args):
        super().__init__()
        self.enter = nn.Linear(features, args.width)
        self.blocks = nn.ModuleList(Block(args.width) for _ in range(args.blocks))
        self.norm = nn.LayerNorm(args.width)
        self.leave = nn.Linear(args.width, args.code)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return F.normalize(self.leave(self.norm(x)).float(), dim=1)


class Matcher(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.patients, self.trials = Tower(args.patient_features, args), Tower(args.trial_features, args)

    def forward(self, patients, trials):
        return self.patients(patients), self.trials(trials)


def contrast(patients, trials, heat, compare):
    if compare == "bf16":
        patients, trials = patients.bfloat16(), trials.bfloat16()
    scores = (patients @ trials.T).float() / heat
    own = torch.arange(len(scores), device=scores.device)
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2181)
    model = Matcher(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=0.1, fused=True)
    pairs = []
    for _ in range(3):
        patients = torch.randn(args.batch, args.patient_features, device=device)
        pairs.append((patients, torch.randn(args.batch, args.trial_features, device=device)))
    for step, (patients, trials) in enumerate(itertools.cycle(pairs), 1):
        with torch.autocast(device.type, torch.bfloat16):
            patients, trials = model(patients, trials)
        loss = contrast(patients, trials, args.heat, args.compare)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patient-features", type=int, default=1500)
    parser.add_argument("--trial-features", type=int, default=768)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--code", type=int, default=512)
    parser.add_argument("--compare", choices=["fp32", "bf16"], default="bf16", help="what likenesses are computed in")
    parser.add_argument("--heat", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=16_384)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
