"""Reconstructs slices of a body from x-rays that went through it (learned primal-dual): small networks take turns on
the picture and on what was measured, with projections between them. Each angle is measured in several exposures."""

import argparse
import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Rays:
    """Projections along rays at all angles, and back. Slices of a batch are channels: all are turned alike."""

    def __init__(self, args, device):
        angles = torch.arange(args.angles, device=device) * (math.pi / args.angles)
        cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
        turn = torch.stack([cos, -sin, zero, sin, cos, zero], dim=1).view(-1, 2, 3)
        back = torch.stack([cos, sin, zero, -sin, cos, zero], dim=1).view(-1, 2, 3)
        size = [args.angles, 1, args.size, args.size]
        self.turn, self.back = (F.affine_grid(way, size, align_corners=False) for way in (turn, back))
        self.each, self.size = args.project == "each", args.size

    def forward(self, slices):
        """From (slices, size, size) to (slices, angles, size)."""
        if self.each:
            seen = [
                F.grid_sample(slices[None], grid[None], align_corners=False).sum(2).squeeze(0) for grid in self.turn
            ]
            return torch.stack(seen, dim=1) / self.size
        slices = slices.expand(len(self.turn), *slices.shape)
        return F.grid_sample(slices, self.turn, align_corners=False).sum(2).transpose(0, 1) / self.size

    def adjoint(self, seen):
        """The other way."""
        if self.each:
            slices = 0
            for number, grid in enumerate(self.back):
                smeared = seen[:, number, None].expand(-1, self.size, -1)
                slices = slices + F.grid_sample(smeared[None], grid[None], align_corners=False).squeeze(0)
            return slices / self.size
        smeared = seen.transpose(0, 1)[:, :, None].expand(-1, -1, self.size, -1)
        return F.grid_sample(smeared, self.back, align_corners=False).sum(0) / self.size


def small_net(enter, width, leave):
    return nn.Sequential(
        nn.Conv2d(enter, width, 3, padding=1), nn.PReLU(width),
        nn.Conv2d(width, width, 3, padding=1), nn.PReLU(width),
        nn.Conv2d(width, leave, 3, padding=1),
    )  # fmt: skip


class PrimalDual(nn.Module):
    def __init__(self, args, rays):
        super().__init__()
        self.rays, self.memory = rays, args.memory
        self.duals = nn.ModuleList(small_net(args.memory + 2, args.width, args.memory) for _ in range(args.turns))
        self.primals = nn.ModuleList(small_net(args.memory + 1, args.width, args.memory) for _ in range(args.turns))

    def forward(self, seen):
        count, _, size = seen.shape
        picture, measured = (
            seen.new_zeros(count, self.memory, size, size),
            seen.new_zeros(count, self.memory, *seen.shape[1:]),
        )
        for dual, primal in zip(self.duals, self.primals, strict=True):
            projected = self.rays.forward(picture[:, 1])
            measured = measured + dual(torch.cat([measured, projected[:, None], seen[:, None]], dim=1))
            smeared = self.rays.adjoint(measured[:, 0])
            picture = picture + primal(torch.cat([picture, smeared[:, None]], dim=1))
        return picture[:, 0]


def scans(args, device):
    """Counts of all exposures, and the slices that should be found. Few of them, again and again."""
    rng = np.random.default_rng(1911)
    stored = []
    for _ in range(2):
        counts = rng.random((args.batch, args.exposures, args.angles, args.size), dtype=np.float32) + 0.5
        stored.append((counts, rng.random((args.batch, args.size, args.size), dtype=np.float32)))
    if args.scans == "pinned":
        pin = device.type == "cuda"
        stored = [
            [torch.from_numpy(part).pin_memory() if pin else torch.from_numpy(part) for part in scan] for scan in stored
        ]
    for step in itertools.count():
        yield [torch.as_tensor(part).to(device, non_blocking=True) for part in stored[step % len(stored)]]


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1912)
    model = PrimalDual(args, Rays(args, device)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), args.lr, betas=(0.9, 0.99), fused=True)
    for step, (counts, wanted) in enumerate(scans(args, device), 1):
        seen = -counts.mean(1).log()
        loss = F.mse_loss(model(seen), wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128, help="of a slice, and detectors")
    parser.add_argument("--angles", type=int, default=96)
    parser.add_argument("--exposures", type=int, default=4, help="of each angle")
    parser.add_argument("--project", choices=["each", "joint"], default="joint", help="angle by angle, or all at once")
    parser.add_argument("--scans", choices=["numpy", "pinned"], default="pinned", help="what they are stored as")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--memory", type=int, default=5, help="pictures that networks keep")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
