"""Learns how far away everything in a picture is (depth from one picture): a residual encoder, a decoder that goes back
to the full size, and a loss of logarithms that leaves out the pixels that are furthest off."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, enter, leave, stride=1):
        super().__init__()
        self.first = nn.Conv2d(enter, leave, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(leave, leave, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(leave) for _ in range(2))
        self.skip = nn.Identity() if enter == leave and stride == 1 else nn.Conv2d(enter, leave, 1, stride)

    def forward(self, x):
        return F.relu(self.skip(x) + self.norms[1](self.second(F.relu(self.norms[0](self.first(x))))))


class Up(nn.Module):
    """To twice the size, with what the encoder knew at it."""

    def __init__(self, enter, beside, leave):
        super().__init__()
        self.mix = nn.Conv2d(enter + beside, leave, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(leave)

    def forward(self, x, beside):
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        return F.relu(self.norm(self.mix(torch.cat([x, beside], 1))))


class Depth(nn.Module):
    def __init__(self, args):
        super().__init__()
        widths = [args.width * 2**level for level in range(4)]
        self.stem = nn.Sequential(nn.Conv2d(3, args.width, 7, 2, 3, bias=False), nn.BatchNorm2d(args.width), nn.ReLU())
        self.stages = nn.ModuleList()
        for enter, leave in itertools.pairwise([args.width, *widths]):
            blocks = [Residual(enter, leave, 2), *(Residual(leave, leave) for _ in range(args.blocks - 1))]
            self.stages.append(nn.Sequential(*blocks))
        besides = [*widths[-2::-1], args.width]
        enters = [widths[-1], *besides[:-1]]
        self.ups = nn.ModuleList(Up(enter, beside, beside) for enter, beside in zip(enters, besides, strict=True))
        self.out = nn.Conv2d(args.width, 4, 3, padding=1)

    def forward(self, x):
        known = [self.stem(x)]
        for stage in self.stages:
            known.append(stage(known[-1]))
        x = known.pop()
        for up in self.ups:
            x = up(x, known.pop())
        return F.pixel_shuffle(self.out(x), 2)[:, 0]


def depth_loss(logs, depths, args):
    """Pixels that are further off than most are left out; the scale of a picture counts less than its shape."""
    apart = logs.float() - depths.log()
    off = apart.detach().abs().flatten()
    keep = int(args.keep * off.numel())
    limit = off.kthvalue(keep).values if args.limit == "kth" else off.sort().values[keep - 1]
    apart = apart * (apart.abs() <= limit)
    return apart.square().mean() - 0.5 * apart.mean((1, 2)).square().mean()


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(600)
    with device:
        model = Depth(args).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = []
    for _ in range(3):
        pictures = torch.rand(args.batch, 3, args.side, args.side, device=device)
        depths = torch.rand(args.batch, args.side, args.side, device=device) * 79 + 1
        batches.append((pictures.contiguous(memory_format=torch.channels_last), depths))
    for step in range(1, 1_000_000):
        pictures, depths = batches[step % len(batches)]
        with torch.autocast(device.type, torch.bfloat16):
            logs = model(pictures)
        loss = depth_loss(logs, depths, args)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=384, help="of a picture, in pixels")
    parser.add_argument("--width", type=int, default=64, help="channels at a quarter of the size")
    parser.add_argument("--blocks", type=int, default=3, help="of each scale")
    parser.add_argument("--keep", type=float, default=0.8, help="share of the pixels that count")
    parser.add_argument("--limit", choices=["kth", "sorted"], default="sorted", help="how it is found what counts")
    parser.add_argument("--batch", type=int, default=32)
    main(parser.parse_args())
