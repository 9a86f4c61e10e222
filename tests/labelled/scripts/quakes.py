"""Picks when waves of earthquakes arrive: patches of a station's three components go through a transformer, which says
of each sample how likely a first (P) or a second (S) wave begins there. Recordings lie compressed in a file, chunk by
chunk."""

import argparse
import itertools
import multiprocessing
import os
import tempfile
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

PARTS = 3  # components of a recording; and what a sample may be: neither wave, the first or the second


class Archive:
    """Chunks of a file, each of which is a recording."""

    def __init__(self, args):
        self.file = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the archive is)
        self.shape, self.shared = (PARTS, args.length), args.file == "shared"
        self.lock, self.places = multiprocessing.Lock(), []
        rng = np.random.default_rng(1821)
        for _ in range(args.chunks):
            packed = zlib.compress((300 * rng.standard_normal(self.shape)).astype("<i2").tobytes(), 1)
            self.places.append((self.file.tell(), len(packed)))
            self.file.write(packed)
        self.file.flush()

    def read(self, number):
        start, size = self.places[number % len(self.places)]
        if self.shared:
            with self.lock:  # all workers have the one open file, and its position
                self.file.seek(start)
                return self.unpacked(self.file.read(size))
        return self.unpacked(os.pread(self.file.fileno(), size, start))

    def unpacked(self, packed):
        return np.frombuffer(zlib.decompress(packed), "<i2").reshape(self.shape).astype(np.float32)


class Recordings(Dataset):
    def __init__(self, args):
        self.archive, self.length = Archive(args), args.length

    def __len__(self):
        return 10_000_000

    def __getitem__(self, number):
        first = number * 7919 % (self.length // 2)
        return self.archive.read(number), np.array([first, first + self.length // 4])


def batches(args, device):
    cuda = device.type == "cuda"
    loader = DataLoader(
        Recordings(args), args.batch, num_workers=args.workers, pin_memory=cuda,
        multiprocessing_context="fork" if args.workers else None,
    )  # fmt: skip
    sent = ([part.to(device, non_blocking=True) for part in batch] for batch in loader)
    return sent if args.workers else itertools.cycle(list(itertools.islice(sent, 3)))


def levelled(waves, window, level):
    """Waves in units of how much they swing around that time."""
    if level == "time_first":
        x, axis = waves.permute(2, 0, 1).contiguous(), 0
    else:
        x, axis = waves, 2
    length = x.shape[axis]
    sums, squares = x.cumsum(axis), x.square().cumsum(axis)
    after = torch.arange(length, device=x.device).add(window // 2).clamp(max=length - 1)
    before = (after - window).clamp(min=0)
    count = (after - before).float().view([-1 if n == axis else 1 for n in range(3)])
    mean, square = (
        (sum_.index_select(axis, after) - sum_.index_select(axis, before)) / count for sum_ in (sums, squares)
    )
    x = (x - mean) * torch.rsqrt((square - mean.square()).clamp(min=1.0))
    return x.permute(1, 2, 0) if level == "time_first" else x


class Picker(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.patch = args.patch
        self.enter = nn.Linear(PARTS * args.patch, args.width)
        self.places = nn.Parameter(0.02 * torch.randn(args.length // args.patch, args.width))
        layer = nn.TransformerEncoderLayer(
            args.width, args.width // 64, 4 * args.width, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.body = nn.TransformerEncoder(layer, args.layers, norm=nn.LayerNorm(args.width), enable_nested_tensor=False)
        self.head = nn.Linear(args.width, PARTS * args.patch)

    def forward(self, waves):
        x = waves.unflatten(2, (-1, self.patch)).transpose(1, 2).flatten(2)
        x = self.head(self.body(self.enter(x) + self.places))
        return x.unflatten(2, (PARTS, self.patch)).transpose(1, 2).flatten(2)


def wanted(picks, length):
    """How likely each wave begins at each sample: most at its pick, less around it."""
    time = torch.arange(length, device=picks.device)
    waves = torch.exp(-((time - picks[..., None]) / 20.0).square() / 2)
    return torch.cat([(1 - waves.sum(1, keepdim=True)).clamp(min=0), waves], dim=1)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1822)
    model = Picker(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
    for step, (waves, picks) in enumerate(batches(args, device), 1):
        with torch.no_grad():
            waves, target = levelled(waves, args.window, args.level), wanted(picks, args.length)
        with torch.autocast(device.type, torch.bfloat16):
            told = model(waves)
        loss = F.cross_entropy(told.float(), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=12_000, help="samples of a recording")
    parser.add_argument("--chunks", type=int, default=1024, help="recordings that are stored")
    parser.add_argument("--file", choices=["shared", "own"], default="own", help="how workers read it")
    parser.add_argument("--workers", type=int, default=0, help="that read; 0: few batches, on the device")
    parser.add_argument("--level", choices=["time_first", "time_last"], default="time_last", help="as waves lie then")
    parser.add_argument("--window", type=int, default=1000, help="samples over which waves are levelled")
    parser.add_argument("--patch", type=int, default=24)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
