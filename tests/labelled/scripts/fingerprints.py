"""Learns to find a recording again from a few seconds of it (audio fingerprints): a piece and the same piece as heard
in a noisy room are to be close, and far from all others."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from scipy.signal import fftconvolve
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE = 16_000


def room(draw, length):
    """How a room answers a clap: noise that fades."""
    fade = np.exp(-np.arange(length) / (length * draw.uniform(0.05, 0.2)))
    return (draw.standard_normal(length) * fade / np.sqrt((fade**2).sum())).astype(np.float32)


class Pieces(Dataset):
    """Pairs of a piece and what is to be mixed with it; with `augment`, a piece and the piece as it is heard."""

    def __init__(self, args, length=2_000_000):
        draw = np.random.default_rng(2403)
        self.args, self.augment = args, args.augment == "loader"
        self.samples = int(args.seconds * RATE)
        time = np.arange(length, dtype=np.float32) / RATE
        tones = [np.sin(2 * np.pi * f * time * (1 + 0.01 * np.sin(time))) for f in (110, 247, 523, 1490)]
        self.music = (sum(tones) + 0.3 * draw.standard_normal(length)).astype(np.float32)
        self.noise = draw.standard_normal(length).astype(np.float32)
        self.rooms = np.stack([room(draw, args.room) for _ in range(64)])

    def __len__(self):
        return 1_000_000

    def cut(self, track, draw):
        start = draw.integers(len(track) - self.samples)
        return track[start : start + self.samples]

    def __getitem__(self, index):
        draw = np.random.default_rng(index)
        piece, noise = self.cut(self.music, draw), self.cut(self.noise, draw)
        if not self.augment:
            return piece, noise, int(draw.integers(len(self.rooms)))
        heard = fftconvolve(piece, self.rooms[draw.integers(len(self.rooms))])[: self.samples]
        return piece, heard + draw.uniform(0.05, 0.5) * noise


def heard_on_device(pieces, noise, rooms):
    length = pieces.shape[1] + rooms.shape[1]
    heard = torch.fft.irfft(torch.fft.rfft(pieces, length) * torch.fft.rfft(rooms, length), length)
    loud = torch.empty(len(pieces), 1, device=pieces.device).uniform_(0.05, 0.5)
    return heard[:, : pieces.shape[1]] + loud * noise


class Encoder(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.register_buffer("window", torch.hann_window(1024))
        self.enter = nn.Conv2d(1, width, 4, stride=4)
        layer = nn.TransformerEncoderLayer(
            4 * width, max(1, width // 16), 16 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.mix = nn.Linear(32 * width, 4 * width)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(4 * width, 128)

    def forward(self, sound):
        with torch.autocast(sound.device.type, enabled=False):
            spectrum = torch.stft(sound, 1024, 128, window=self.window, return_complex=True).abs()
            spectrum = torch.log(F.adaptive_avg_pool2d(spectrum.unsqueeze(1), (128, spectrum.shape[2])) + 1e-4)
        x = self.enter(spectrum).flatten(1, 2).transpose(1, 2)
        return F.normalize(self.head(self.layers(self.mix(x)).mean(1)).float(), dim=1)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2404)
    model = Encoder(args.width, args.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
    data = Pieces(args)
    rooms = torch.from_numpy(data.rooms).to(device)
    loader = DataLoader(data, args.batch, num_workers=args.workers, pin_memory=args.pin, persistent_workers=True)
    for step, batch in enumerate(loader, 1):
        batch = [part.to(device, non_blocking=args.pin) for part in batch]
        pieces, heard = batch[:2]
        if args.augment == "device":
            heard = heard_on_device(pieces, heard, rooms[batch[2]])
        with torch.autocast(device.type, torch.bfloat16):
            codes = model(torch.cat([pieces, heard]))
        alike = codes @ codes.t() / args.temperature
        alike.fill_diagonal_(float("-inf"))
        loss = F.cross_entropy(alike, torch.arange(len(codes), device=device).roll(len(pieces)))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a piece")
    parser.add_argument("--room", type=int, default=8000, help="samples of a room's answer")
    parser.add_argument("--augment", choices=["loader", "device"], default="device", help="where pieces get into rooms")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--pin", action="store_true", help="page-locked batches")
    parser.add_argument("--temperature", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
