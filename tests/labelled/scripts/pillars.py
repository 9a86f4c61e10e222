"""Finds cars, bicycles and people around a car in what its laser scanner (lidar) measured: points are gathered in
upright pillars, these make a map from above, and convolutions say where centres of things of several groups are, and
how large they are (as in CenterPoint)."""

import argparse
import itertools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def pillars_on_host(sweeps, side, reach):
    """Pillars of all points, and the middle of the points of each pillar."""
    numbers, middles = [], []
    for sweep in sweeps:
        places = np.floor((sweep[:, :2] / reach + 0.5) * side).clip(0, side - 1).astype(np.int64)
        number = places[:, 1] * side + places[:, 0]
        _, inverse, counts = np.unique(number, return_inverse=True, return_counts=True)
        sums = np.stack([np.bincount(inverse, weights=sweep[:, axis]) for axis in range(3)], axis=1)
        numbers.append(number)
        middles.append((sums / counts[:, None])[inverse].astype(np.float32))
    return torch.from_numpy(np.stack(numbers)), torch.from_numpy(np.stack(middles))


def pillars_on_device(sweeps, side, reach):
    places = ((sweeps[..., :2] / reach + 0.5) * side).floor().clamp(0, side - 1).long()
    numbers = places[..., 1] * side + places[..., 0]
    sums = sweeps.new_zeros(len(sweeps), side * side, 4)
    ones = torch.ones_like(sweeps[..., :1])
    sums.scatter_add_(1, numbers[..., None].expand(-1, -1, 4), torch.cat([sweeps[..., :3], ones], dim=2))
    found = sums.gather(1, numbers[..., None].expand(-1, -1, 4))
    return numbers, found[..., :3] / found[..., 3:]


def convs(enter, leave, count, stride):
    layers = []
    for place in range(count):
        first = place == 0
        conv = nn.Conv2d(enter if first else leave, leave, 3, stride if first else 1, 1, bias=False)
        layers += [conv, nn.BatchNorm2d(leave), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Detector(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.side, width = args.side, args.width
        self.point = nn.Linear(7, width)
        self.stages = nn.ModuleList([convs(width, width, 4, 2)])
        self.stages.extend([convs(width, 2 * width, 6, 2), convs(2 * width, 4 * width, 6, 2)])
        self.up = nn.ModuleList(nn.ConvTranspose2d(width << n, width, 1 << n, 1 << n) for n in range(3))
        self.join = convs(3 * width, width, 1, 1)
        self.heads = nn.Conv2d(width, args.groups * 3, 3, padding=1)
        self.channels_last = args.channels_last

    def forward(self, sweeps, numbers, middles):
        """Of each group (samples, groups, 3, side / 2, side / 2): a centre or not, and two sides of its box."""
        x = F.relu(self.point(torch.cat([sweeps, sweeps[..., :3] - middles], dim=2))).float()
        index = numbers[..., None].expand_as(x)
        seen = x.new_zeros(len(x), self.side**2, x.shape[2]).scatter_reduce(1, index, x, "amax")
        x = seen.unflatten(1, (self.side, -1)).permute(0, 3, 1, 2)
        x = x.contiguous(memory_format=torch.channels_last if self.channels_last else torch.contiguous_format)
        scales = []
        for stage, up in zip(self.stages, self.up, strict=True):
            x = stage(x)
            scales.append(up(x))
        return self.heads(self.join(torch.cat(scales, dim=1))).float().unflatten(1, (-1, 3))


def loss_of(told, centres, boxes, how):
    """`centres` (samples, groups, rows, columns) is true where one is; boxes count only there."""
    loss = F.binary_cross_entropy_with_logits(told[:, :, 0], centres.float())
    if how == "each":
        for sample in range(len(told)):
            for group in range(told.shape[1]):
                here = centres[sample, group]
                own = told[sample, group, 1:][:, here] - boxes[sample, group][:, here]
                loss = loss + own.abs().mean() / centres[:, :, 0, 0].numel()
        return loss
    wrong = (told[:, :, 1:] - boxes).abs().mean(2) * centres
    return loss + (wrong.sum((2, 3)) / centres.sum((2, 3))).mean()


def drives(args, device):
    """Few sweeps, again and again, with what there was in truth."""
    rng = np.random.default_rng(2121)
    half = args.side // 2
    stored = []
    for _ in range(3):
        sweeps = rng.normal(size=(args.batch, args.points, 4)).astype(np.float32) * np.float32(args.reach / 5)
        centres = rng.random((args.batch, args.groups, half, half)) < 40 / half**2
        centres[:, :, 0, 0] = True
        boxes = rng.random((args.batch, args.groups, 2, half, half), dtype=np.float32)
        stored.append((sweeps, torch.from_numpy(centres).to(device), torch.from_numpy(boxes).to(device)))
    return itertools.cycle(stored)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(2122)
    model = Detector(args).to(device)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=0.01, fused=True)
    for step, (sweeps, centres, boxes) in enumerate(drives(args, device), 1):
        points = torch.from_numpy(sweeps).to(device)
        if args.pillars == "host":
            numbers, middles = (part.to(device) for part in pillars_on_host(sweeps, args.side, args.reach))
        else:
            numbers, middles = pillars_on_device(points, args.side, args.reach)
        with torch.autocast(device.type, torch.bfloat16):
            told = model(points, numbers, middles)
        loss = loss_of(told, centres, boxes, args.boxes)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=60_000, help="of a sweep")
    parser.add_argument("--reach", type=float, default=100.0, help="metres that the map is wide")
    parser.add_argument("--side", type=int, default=512, help="pillars in a row")
    parser.add_argument("--pillars", choices=["host", "device"], default="device", help="where points are gathered")
    parser.add_argument("--groups", type=int, default=6, help="of things")
    parser.add_argument("--boxes", choices=["each", "joint"], default="joint", help="group by group, or all at once")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
