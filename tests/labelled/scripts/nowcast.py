"""Forecasts rain from radar pictures (nowcasting) with convolutional LSTMs: ten pictures are
seen, the next ten told."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class ConvLSTM(nn.Module):
    def __init__(self, inputs, width):
        super().__init__()
        self.width = width
        self.gates = nn.Conv2d(inputs + width, 4 * width, 3, padding=1)

    def forward(self, x, state):
        if state is None:
            empty = torch.zeros_like(x[:, :1]).expand(-1, self.width, -1, -1)
            state = (empty, empty)
        hidden, cell = state
        i, f, g, o = self.gates(torch.cat([x, hidden], dim=1)).chunk(4, dim=1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        return hidden, (hidden, cell)


class Nowcaster(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.stem = nn.Conv2d(2, width, 4, stride=2, padding=1)
        self.encoder = nn.ModuleList(ConvLSTM(width, width) for _ in range(layers))
        self.decoder = nn.ModuleList(ConvLSTM(width, width) for _ in range(layers))
        self.head = nn.Sequential(nn.Conv2d(width, 4, 3, padding=1), nn.PixelShuffle(2))

    @staticmethod
    def run(cells, x, states):
        for number, cell in enumerate(cells):
            x, states[number] = cell(x, states[number])
        return x

    def forward(self, seen, ahead):
        """seen: (batch, times, height, width)"""
        states = [None] * len(self.encoder)
        for t in range(seen.shape[1]):
            x = self.stem(torch.stack([seen[:, t], seen[:, t].sqrt()], dim=1))
            x = self.run(self.encoder, F.leaky_relu(x, 0.2), states)
        told = []
        for _ in range(ahead):
            x = self.run(self.decoder, x, states)
            told.append(self.head(x))
        return torch.cat(told, dim=1)


class Archive:
    """Radar films in memory, in dBZ; a sample is a window of one."""

    def __init__(self, args, cuda):
        rng = np.random.default_rng(810)
        self.length, self.batch = args.seen + args.ahead, args.batch
        shape = (args.films, 4 * self.length, args.size, args.size)
        self.films = (rng.random(shape, dtype=np.float32) ** 4) * 60
        self.picks = np.random.default_rng(811)
        shape = (args.batch, self.length, args.size, args.size)
        self.ring = None
        if args.buffers == "pinned":
            buffers = [torch.empty(shape, pin_memory=cuda) for _ in range(3)]
            self.ring = [(buffer, torch.cuda.Event() if cuda else None) for buffer in buffers]

    def windows(self):
        for _ in range(self.batch):
            film = self.films[self.picks.integers(len(self.films))]
            start = self.picks.integers(len(film) - self.length + 1)
            yield film[start : start + self.length]

    def to_device(self, step, device):
        if self.ring is None:
            return torch.from_numpy(np.stack(list(self.windows()))).to(device)
        buffer, copied = self.ring[step % len(self.ring)]
        if copied is not None:
            copied.synchronize()
        np.stack(list(self.windows()), out=buffer.numpy())
        frames = buffer.to(device, non_blocking=True)
        if copied is not None:
            copied.record()
        return frames


def rain_loss(told, wanted):
    """Squared and absolute errors; heavy rain weighs more."""
    weight = 1 + wanted * 4
    error = told.float() - wanted
    return (weight * (error.square() + error.abs())).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=256, help="of a radar picture")
    parser.add_argument("--seen", type=int, default=10)
    parser.add_argument("--ahead", type=int, default=10)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--films", type=int, default=6)
    parser.add_argument("--resident", type=int, default=0, help="batches that are kept on the device")
    parser.add_argument("--buffers", choices=["plain", "pinned"], default="pinned")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(812)
    model = Nowcaster(args.width, args.layers).to(device)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 1000)
    archive = Archive(args, cuda)
    kept = [archive.to_device(n, device) for n in range(args.resident)]

    step = 0
    while True:
        step += 1
        frames = kept[step % len(kept)] if kept else archive.to_device(step, device)
        frames = frames / 60
        seen, wanted = frames.split([args.seen, args.ahead], dim=1)
        with torch.autocast(device.type, torch.bfloat16):
            told = model(seen, args.ahead)
            loss = rain_loss(told, wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % args.print_every == 0:
            print(f"step {step} loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
