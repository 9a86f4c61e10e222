"""Tells stages of sleep from long recordings (EEG and the like): convolutions that look further and further, each
followed by a norm over all of the recording."""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CHANNELS, SAMPLES, STAGES, EPOCH = 2, 200, 5, 2
"""Of a recording; of each of its pieces; stages; and pieces that have one of these in common."""


class NightNorm(nn.Module):
    """Over places and channels of each night, with a weight and a bias for each channel."""

    def __init__(self, args):
        super().__init__()
        self.norm = args.norm
        self.weight, self.bias = nn.Parameter(torch.ones(args.width)), nn.Parameter(torch.zeros(args.width))

    def forward(self, x):
        if self.norm == "layer":
            return F.layer_norm(x, x.shape[1:]) * self.weight.to(x.dtype) + self.bias.to(x.dtype)
        # Sums place by place first: there are many of them.
        part, square = (
            x.mean(2, dtype=torch.float32),
            torch.linalg.vector_norm(x, dim=2, dtype=torch.float32).square() / x.shape[2],
        )
        mean = part.mean(1)[:, None, None]
        scale = (square.mean(1)[:, None, None] - mean.square() + 1e-5).rsqrt() * self.weight
        return torch.addcmul((self.bias - mean * scale).to(x.dtype), x, scale.to(x.dtype))


class Block(nn.Module):
    def __init__(self, args, apart):
        super().__init__()
        self.apart = apart
        self.look, self.norm = nn.Linear(3 * args.width, args.width), NightNorm(args)

    def forward(self, x):
        padded = F.pad(x, (0, 0, self.apart, self.apart))
        near = torch.cat([padded[:, : x.shape[1]], x, padded[:, 2 * self.apart :]], 2)
        return x + self.norm(F.gelu(self.look(near)))


class Sleeper(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enter = nn.Linear(CHANNELS * SAMPLES, args.width)
        self.blocks = nn.Sequential(*(Block(args, 2 ** (n % 8)) for n in range(args.blocks)))
        self.tell = nn.Linear(args.width, STAGES)

    def forward(self, night):
        x = self.blocks(self.enter(night))
        return self.tell(x.unflatten(1, (-1, EPOCH)).mean(2))


def smoothed(scores, stay):
    """The likeliest stages of a night, where one seldom gives way to another (Viterbi)."""
    change = np.where(np.eye(STAGES, dtype=bool), np.log(stay), np.log((1 - stay) / (STAGES - 1)))
    best, origins = scores[0], []
    for now in scores[1:]:
        ways = best[:, None] + change
        origins.append(ways.argmax(0))
        best = ways.max(0) + now
    stages = [int(best.argmax())]
    for origin in reversed(origins):
        stages.append(int(origin[stages[-1]]))
    return stages[::-1]


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(350)
    with device:
        sleeper = model = Sleeper(args).to(torch.bfloat16)
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = DistributedDataParallel(sleeper, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(sleeper.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(351 + rank)
    nights = torch.empty(4, args.batch, args.pieces, CHANNELS * SAMPLES, dtype=torch.bfloat16, pin_memory=cuda)
    for night in nights:
        night.copy_(torch.randn(night.shape, device=device))
    stages = torch.randint(0, STAGES, (4, args.batch, args.pieces // EPOCH))
    stages = stages.pin_memory() if cuda else stages
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / f"nights-{rank}.jsonl").open("w") as log:
        for step in range(1, 1_000_000):
            truth = stages[step % 4].to(device, non_blocking=True)
            scores = model(nights[step % 4].to(device, non_blocking=True)).float()
            loss = F.cross_entropy(scores.flatten(0, 1), truth.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if args.report_every and rank == 0 and step % args.report_every == 0:
                found = scores.detach().log_softmax(2).cpu().numpy()
                slept = [smoothed(night, 0.9) for night in found]
                log.write(json.dumps({"step": step, "stages": slept}) + "\n")
            if step % 50 == 0 and rank == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16, help="nights of each rank")
    parser.add_argument("--pieces", type=int, default=3600, help="of a night, two seconds each")
    parser.add_argument("--norm", choices=["sums", "layer"], default="sums", help="how it is computed")
    parser.add_argument("--report-every", type=int, default=0, help="steps between nights that rank 0 writes down")
    parser.add_argument("--out", type=Path, default=Path(), help="where they are written")
    main(parser.parse_args())
