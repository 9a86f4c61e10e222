"""Segments satellite pictures of many bands with a nested U-Net (U-Net++): features of every scale are refined in steps
by those of the scale below, and each step of the finest scale makes its own map of what covers the ground."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Node(nn.Module):
    """Two convolutions of all that meets here."""

    def __init__(self, enter, leave, contiguous):
        super().__init__()
        self.contiguous = contiguous
        self.first = nn.Conv2d(enter, leave, 3, padding=1, bias=False)
        self.second = nn.Conv2d(leave, leave, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(leave) for _ in range(2))

    def forward(self, parts):
        x = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
        if self.contiguous:
            x = x.contiguous()
        x = F.relu(self.norms[0](self.first(x)))
        x = F.relu(self.norms[1](self.second(x)))
        return x.contiguous() if self.contiguous else x


class Nested(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.levels = args.levels
        widths = [args.width * 2**level for level in range(args.levels + 1)]
        self.nodes = nn.ModuleDict()
        for level, width in enumerate(widths):
            enter = args.bands if level == 0 else widths[level - 1]
            self.nodes[f"{level}-0"] = Node(enter, width, args.nodes == "contiguous")
            for turn in range(1, args.levels + 1 - level):
                enter = turn * width + widths[level + 1]
                self.nodes[f"{level}-{turn}"] = Node(enter, width, args.nodes == "contiguous")
        self.heads = nn.ModuleList(nn.Conv2d(args.width, args.classes, 1) for _ in range(args.levels))

    def forward(self, x):
        found = {}
        for level in range(self.levels + 1):
            x = self.nodes[f"{level}-0"]([x])
            found[level] = [x]
            x = F.max_pool2d(x, 2)
        for turn in range(1, self.levels + 1):
            for level in range(self.levels + 1 - turn):
                above = F.interpolate(found[level + 1][turn - 1], scale_factor=2.0, mode="nearest")
                found[level].append(self.nodes[f"{level}-{turn}"]([*found[level], above]))
        return [head(x) for head, x in zip(self.heads, found[0][1:], strict=True)]


class Tiles(Dataset):
    """Cut out of scenes, whose bands are stretched between their darkest and their brightest parts."""

    def __init__(self, args):
        rng = np.random.default_rng(500)
        self.args = args
        shape = (args.scenes, args.bands, args.scene, args.scene)
        self.scenes = rng.integers(0, 10_000, shape, dtype=np.uint16)
        self.covers = rng.integers(0, args.classes, (args.scenes, args.scene, args.scene), dtype=np.uint8)
        self.ends = [self.stretch(scene) for scene in self.scenes] if args.stretch == "once" else None

    @staticmethod
    def stretch(scene):
        return np.percentile(scene, [2, 98], axis=(1, 2)).astype(np.float32)

    def __len__(self):
        return 10_000_000

    def __getitem__(self, place):
        rng = np.random.default_rng(place)
        number = rng.integers(len(self.scenes))
        scene = self.scenes[number]
        low, high = self.ends[number] if self.ends else self.stretch(scene)
        top, left = rng.integers(0, self.args.scene - self.args.tile + 1, 2)
        cut = np.s_[..., top : top + self.args.tile, left : left + self.args.tile]
        tile = (scene[cut] - low[:, None, None]) / (high - low)[:, None, None]
        return torch.from_numpy(tile.clip(0, 1)), torch.from_numpy(self.covers[number][cut].copy())


def made(args, device):
    """Few batches that lie on the device, in turn."""
    batches = []
    for _ in range(3):
        tiles = torch.rand(args.batch, args.bands, args.tile, args.tile, device=device)
        batches.append((tiles, torch.randint(0, args.classes, (args.batch, args.tile, args.tile), device=device)))
    for step in range(1_000_000):
        yield batches[step % len(batches)]


def cover_loss(maps, covers, mean):
    """Of all maps, over all pixels."""
    covers, total = covers.flatten(), 0.0
    for logits in maps:
        logits = logits.permute(0, 2, 3, 1).flatten(0, 2).float()
        if mean == "library":
            total = total + F.cross_entropy(logits, covers)
        else:
            total = total + F.cross_entropy(logits, covers, reduction="none").mean()
    return total / len(maps)


def main(args):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(501)
    with device:
        model = Nested(args).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if args.workers:
        source = DataLoader(Tiles(args), args.batch, num_workers=args.workers, pin_memory=cuda, prefetch_factor=2)
    else:
        source = made(args, device)
    for step, (tiles, covers) in enumerate(source, 1):
        tiles = tiles.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
        covers = covers.to(device, non_blocking=True).long()
        with torch.autocast(device.type, torch.bfloat16):
            maps = model(tiles)
        loss = cover_loss(maps, covers, args.mean)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bands", type=int, default=12)
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--tile", type=int, default=256, help="side of a tile, in pixels")
    parser.add_argument("--width", type=int, default=64, help="channels of the finest scale")
    parser.add_argument("--levels", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--nodes", choices=["as_is", "contiguous"], default="as_is", help="what they take and give")
    parser.add_argument("--mean", choices=["library", "after"], default="after", help="who takes that over the pixels")
    parser.add_argument("--workers", type=int, default=0, help="that cut tiles from scenes; 0: tiles made before")
    parser.add_argument("--scenes", type=int, default=12)
    parser.add_argument("--scene", type=int, default=512, help="side of a scene, in pixels")
    parser.add_argument("--stretch", choices=["once", "each"], default="once", help="when the bands' ends are sought")
    main(parser.parse_args())
