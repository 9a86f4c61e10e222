"""Reads words from lips: a residual network sees each frame of a clip, and a transformer what comes in which order.
Clips lie in page-locked memory of the host."""

import argparse
import contextlib
import itertools

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, enter, leave, stride=1):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(enter, leave, 3, stride, 1, bias=False), nn.BatchNorm2d(leave)
        self.conv2, self.norm2 = nn.Conv2d(leave, leave, 3, 1, 1, bias=False), nn.BatchNorm2d(leave)
        self.past = nn.Identity()
        if stride > 1 or enter != leave:
            self.past = nn.Sequential(nn.Conv2d(enter, leave, 1, stride, bias=False), nn.BatchNorm2d(leave))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.past(x), inplace=True)


class Reader(nn.Module):
    def __init__(self, args):
        super().__init__()
        sizes = [args.width * factor for factor in (1, 1, 2, 4, 8)]
        self.stem = nn.Sequential(nn.Conv2d(3, sizes[0], 4, 4, bias=False), nn.BatchNorm2d(sizes[0]), nn.ReLU())
        blocks = []
        for number, (enter, leave) in enumerate(itertools.pairwise(sizes)):
            blocks += [Block(enter, leave, 2 if number else 1), *(Block(leave, leave) for _ in range(args.blocks - 1))]
        self.trunk = nn.Sequential(*blocks)
        self.places = nn.Parameter(0.02 * torch.randn(args.frames, sizes[-1]))
        layer = nn.TransformerEncoderLayer(
            sizes[-1], max(1, sizes[-1] // 64), 4 * sizes[-1], dropout=0.0, activation="gelu", batch_first=True
        )
        self.order = nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False)
        self.head = nn.Linear(sizes[-1], args.words)

    def forward(self, clips):
        x = clips.flatten(0, 1).permute(0, 3, 1, 2)  # frames are stored with colours last
        x = self.trunk(self.stem(x)).mean((2, 3)).unflatten(0, clips.shape[:2])
        return self.head(self.order(x + self.places).mean(1))


def stored_clips(args, pin):
    """Bytes as the camera gave them, or numbers of them as networks want them."""
    draw = torch.Generator().manual_seed(1941)
    stored = []
    for _ in range(2):
        size = (args.batch, args.frames, args.size, args.size, 3)
        clips = torch.randint(256, size, generator=draw, dtype=torch.uint8)
        if args.store == "floats":
            clips = clips.float() / 255
        words = torch.randint(args.words, (args.batch,), generator=draw)
        stored.append([part.pin_memory() if pin else part for part in (clips, words)])
    return stored


@contextlib.contextmanager
def measured(name, peaks, wanted):
    """Keeps how much memory a part of a step takes at most."""
    if not wanted:
        yield
        return
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield
    peaks[name] = max(peaks.get(name, 0), torch.cuda.max_memory_reserved())


def main(args):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1942)
    model = Reader(args).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
    stored, peaks, watch = stored_clips(args, cuda), {}, args.memory and cuda
    for step, batch in enumerate(itertools.cycle(stored), 1):
        clips, words = (part.to(device, non_blocking=True) for part in batch)
        if clips.dtype == torch.uint8:
            clips = clips.float() / 255
        with measured("forward", peaks, watch), torch.autocast(device.type, torch.bfloat16):
            loss = F.cross_entropy(model(clips), words)
        with measured("backward", peaks, watch):
            loss.backward()
        with measured("update", peaks, watch):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f} {peaks}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=29)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--words", type=int, default=500)
    parser.add_argument("--store", choices=["bytes", "floats"], default="bytes")
    parser.add_argument("--memory", action="store_true", help="keep how much each part of a step takes at most")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=2, help="of each of four stages")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
