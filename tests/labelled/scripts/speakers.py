"""Learns to tell speakers by their voice (in the manner of ECAPA-TDNN): convolutions over the mel spectrum that look
further and further, statistics over time that attention weighs, and a margin between speakers. Rooms are made up."""

import argparse
import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE, MELS, WINDOW, HOP = 16_000, 80, 512, 160


class Level(nn.Module):
    """Brings a batch of waves to mean 0 and variance 1, as BatchNorm1d without weights does."""

    def __init__(self, momentum=0.1, eps=1e-5):
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("var", torch.ones(()))

    def forward(self, waves):
        var, mean = torch.var_mean(waves, correction=0)
        self.mean.lerp_(mean, self.momentum)
        self.var.lerp_(var, self.momentum)
        return (waves - mean) * torch.rsqrt(var + self.eps)


class Mel(nn.Module):
    def __init__(self):
        super().__init__()
        top = 2595 * math.log10(1 + RATE / 2 / 700)
        edges = 700 * (10 ** (torch.linspace(0, 1, MELS + 2) * top / 2595) - 1)
        bins = torch.linspace(0, RATE / 2, WINDOW // 2 + 1)
        rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
        fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
        self.register_buffer("bank", torch.minimum(rise, fall).clamp(min=0))
        self.register_buffer("window", torch.hamming_window(WINDOW))

    def forward(self, waves):
        spectrum = torch.stft(waves, WINDOW, HOP, window=self.window, return_complex=True)
        power = torch.view_as_real(spectrum).square().sum(-1)
        mels = (self.bank @ power + 1e-6).log()
        return mels - mels.mean(2, keepdim=True)


def tdnn(enter, leave, kernel=1, dilation=1):
    conv = nn.Conv1d(enter, leave, kernel, dilation=dilation, padding=dilation * (kernel // 2))
    return nn.Sequential(conv, nn.ReLU(inplace=True), nn.BatchNorm1d(leave))


class Block(nn.Module):
    """Parts of the channels, each of which also sees what was made of the one before; then channels are weighed."""

    def __init__(self, width, dilation, parts=8):
        super().__init__()
        self.parts = parts
        self.enter, self.leave = tdnn(width, width), tdnn(width, width)
        self.steps = nn.ModuleList(tdnn(width // parts, width // parts, 3, dilation) for _ in range(parts - 1))
        self.weigh = nn.Sequential(nn.Linear(width, width // 8), nn.ReLU(), nn.Linear(width // 8, width), nn.Sigmoid())

    def forward(self, x):
        first, *others = self.enter(x).chunk(self.parts, dim=1)
        made, before = [first], 0.0
        for step, part in zip(self.steps, others, strict=True):
            before = step(part + before)
            made.append(before)
        h = self.leave(torch.cat(made, dim=1))
        return x + h * self.weigh(h.mean(2))[:, :, None]


class Voices(nn.Module):
    def __init__(self, args):
        super().__init__()
        width, wide = args.width, 3 * args.width
        self.enter = tdnn(MELS, width, 5)
        self.blocks = nn.ModuleList(Block(width, dilation) for dilation in (2, 3, 4))
        self.joint = tdnn(wide, wide)
        self.attend = nn.Sequential(nn.Conv1d(wide, 128, 1), nn.Tanh(), nn.Conv1d(128, wide, 1))
        self.out = nn.Sequential(nn.BatchNorm1d(2 * wide), nn.Linear(2 * wide, 192), nn.BatchNorm1d(192))

    def forward(self, mels):
        x, seen = self.enter(mels), []
        for block in self.blocks:
            x = block(x)
            seen.append(x)
        x = self.joint(torch.cat(seen, dim=1))
        share = self.attend(x).softmax(2)
        mean = (share * x).sum(2)
        spread = ((share * x * x).sum(2) - mean.square()).clamp(min=1e-4).sqrt()
        return self.out(torch.cat([mean, spread], dim=1))


class Margin(nn.Module):
    """Cosines to all speakers; an angle is added to the right one."""

    def __init__(self, speakers, margin=0.2, scale=30.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(speakers, 192) * 0.05)
        self.cos, self.sin, self.scale = math.cos(margin), math.sin(margin), scale

    def forward(self, x, who):
        cosine = F.linear(F.normalize(x.float()), F.normalize(self.weight)).float()
        own = cosine.gather(1, who[:, None]).clamp(-1 + 1e-6, 1 - 1e-6)
        moved = own * self.cos - (1 - own.square()).sqrt() * self.sin
        return F.cross_entropy(self.scale * cosine.scatter(1, who[:, None], moved), who)


def reverb(waves, rooms):
    """Waves as they sound in rooms, whose answers to a click are given."""
    size = 1 << (waves.shape[-1] + rooms.shape[-1] - 1).bit_length()
    sound = torch.fft.irfft(torch.fft.rfft(waves, size) * torch.fft.rfft(rooms, size), size)
    return sound[..., : waves.shape[-1]]


class Utterances(Dataset):
    """Recordings in memory, of which a stretch is taken."""

    def __init__(self, args):
        draw = torch.Generator().manual_seed(17)
        self.length, self.speakers, self.within = int(args.seconds * RATE), args.speakers, args.reverb == "loader"
        self.waves = 0.1 * torch.randn(256, 2 * self.length, generator=draw)
        fade = torch.exp(-torch.linspace(0, 8, args.room))
        self.rooms = torch.randn(64, args.room, generator=draw) * fade / fade.norm()

    def __len__(self):
        return 10_000_000

    def __getitem__(self, place):
        start = place * 7919 % self.length
        wave = self.waves[place % len(self.waves), start : start + self.length]
        room = place * 31 % len(self.rooms)
        if self.within:
            wave = reverb(wave, self.rooms[room])
        return wave, room, place * 13 % self.speakers


def batches(args, device):
    data = Utterances(args)
    if args.workers:
        loader = DataLoader(data, args.batch, num_workers=args.workers, pin_memory=device.type == "cuda")
    else:
        loader = DataLoader(data, args.batch)
    moved = ([part.to(device, non_blocking=True) for part in batch] for batch in loader)
    if not args.workers:
        moved = itertools.cycle(list(itertools.islice(moved, 3)))  # few, which stay on the device
    rooms = data.rooms.to(device)
    for waves, room, who in moved:
        yield (waves if data.within else reverb(waves, rooms[room])), who


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--speakers", type=int, default=6000)
    parser.add_argument("--room", type=int, default=8000, help="samples of a room's answer")
    parser.add_argument("--workers", type=int, default=0, help="that cut and mix; 0: few batches, on the device")
    parser.add_argument("--reverb", choices=["loader", "device"], default="device", help="where rooms are heard")
    parser.add_argument("--level", choices=["batch_norm", "moments"], default="moments", help="what levels waves")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1701)
    model, margin = Voices(args).to(device), Margin(args.speakers).to(device)
    level = (nn.BatchNorm1d(1, affine=False) if args.level == "batch_norm" else Level()).to(device)
    mel = Mel().to(device)
    weights = [*model.parameters(), *margin.parameters()]
    optimizer = torch.optim.Adam(weights, args.lr, weight_decay=2e-5, fused=True)
    for step, (waves, who) in enumerate(batches(args, device), 1):
        with torch.no_grad():
            mels = mel(level(waves[:, None])[:, 0])
        with torch.autocast(device.type, torch.bfloat16):
            found = model(mels)
        loss = margin(found, who)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
