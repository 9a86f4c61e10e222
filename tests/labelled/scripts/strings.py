"""Learns the sound of strings (differentiable synthesis, DDSP): a network hears pitch, loudness and the spectrum, and
sets a bank of oscillators and a filter of noise; the sound that they make is compared at several resolutions."""

import argparse
import math
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RATE, HOP, MELS, BANDS = 24_000, 240, 80, 65


def to_samples(x, along):
    """From frames, which lie along a dimension, to samples: linear between frames."""
    after = torch.cat([x.narrow(along, 1, x.shape[along] - 1), x.narrow(along, x.shape[along] - 1, 1)], dim=along)
    ramp = torch.arange(HOP, device=x.device) / HOP
    ramp = ramp.view(-1, *([1] * (x.ndim - along - 1)))
    x, after = x.unsqueeze(along + 1), after.unsqueeze(along + 1)
    return (x + (after - x) * ramp).flatten(along, along + 1)


class Strings(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.harmonics, self.order = args.harmonics, args.order
        self.enter = nn.Linear(MELS + 2, args.width)
        layer = nn.TransformerEncoderLayer(
            args.width, args.width // 64, 4 * args.width, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.body = nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False)
        self.level = nn.Linear(args.width, 1)
        self.shares = nn.Linear(args.width, args.harmonics)
        self.stiffness = nn.Linear(args.width, 1)
        self.noise = nn.Linear(args.width, BANDS)
        self.register_buffer("numbers", torch.arange(1, args.harmonics + 1).float(), persistent=False)

    def oscillators(self, pitch, stiffness, strengths):
        """All harmonics of a stiff string, summed. Phases are added up in double precision."""
        pitch, stiffness = to_samples(pitch, 1), to_samples(stiffness, 1)
        if self.order == "time":
            pitch, stiffness, numbers, along = pitch[..., None], stiffness[..., None], self.numbers, 1
        else:
            pitch, stiffness, numbers, along = pitch[:, None], stiffness[:, None], self.numbers[:, None], 2
            strengths = strengths.transpose(1, 2)
        strengths = to_samples(strengths, along)
        frequencies = pitch * numbers * torch.sqrt(1 + stiffness * numbers**2)
        strengths = torch.where(frequencies < RATE / 2, strengths, 0.0)
        turns = frequencies * (2 * math.pi / RATE)
        phases = torch.cumsum(turns, dim=along, dtype=torch.float64).remainder(2 * math.pi).float()
        return (strengths * phases.sin()).sum(3 - along)

    def filtered(self, noise, bands):
        """Noise of each frame, filtered by its bands."""
        frames = noise.unflatten(-1, (-1, HOP))
        answer = torch.fft.irfft(bands.to(torch.complex64), n=2 * (BANDS - 1)).roll(BANDS - 1, -1)
        size = HOP + 2 * (BANDS - 1)
        spectrum = torch.fft.rfft(frames, n=size) * torch.fft.rfft(answer, n=size)
        return torch.fft.irfft(spectrum, n=size)[..., :HOP].flatten(-2)

    def forward(self, mels, pitch, loudness, noise):
        device = mels.device.type
        with torch.autocast(device, torch.bfloat16):
            x = torch.cat([mels, pitch[..., None].log(), loudness[..., None]], dim=-1)
            x = self.body(self.enter(x))
            level, shares, stiffness, bands = self.level(x), self.shares(x), self.stiffness(x), self.noise(x)
        strengths = F.softplus(level.float()) * shares.float().softmax(-1)
        stiffness = 1e-3 * torch.sigmoid(stiffness.float())[..., 0]
        tones = self.oscillators(pitch, stiffness, strengths)
        return tones + self.filtered(noise, 0.01 * torch.sigmoid(bands.float()))


class SpectralLoss(nn.Module):
    def __init__(self, sizes=(2048, 1024, 512, 256, 128, 64)):
        super().__init__()
        self.sizes = sizes
        for size in sizes:
            self.register_buffer(f"window{size}", torch.hann_window(size), persistent=False)

    def forward(self, made, wanted):
        loss = 0.0
        for size in self.sizes:
            both = torch.stft(
                torch.cat([made, wanted]), size, size // 4, window=getattr(self, f"window{size}"), return_complex=True
            ).abs()
            a, b = both.chunk(2)
            loss = loss + F.l1_loss(a, b) + F.l1_loss((a + 1e-5).log(), (b + 1e-5).log())
        return loss


def recordings(args, device):
    """Made-up: three batches of notes that bend a little."""
    frames = args.seconds * RATE // HOP
    for _ in range(3):
        mels = torch.randn(args.batch, frames, MELS, device=device)
        bends = torch.randn(args.batch, frames, device=device).cumsum(-1) * 0.002
        pitch = (60 + 400 * torch.rand(args.batch, 1, device=device)) * bends.exp()
        loudness = torch.rand(args.batch, frames, device=device)
        wanted = 0.1 * torch.randn(args.batch, frames * HOP, device=device)
        yield mels, pitch, loudness, wanted


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=2, help="of a recording")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--harmonics", type=int, default=64)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--order", choices=["time", "harmonics"], default="harmonics", help="which comes first")
    parser.add_argument("--examples-every", type=int, default=0)
    parser.add_argument("--examples", type=int, default=2, help="sounds that are kept to be listened to")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()

    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    cuda, device = torch.cuda.is_available(), torch.device("cpu")
    if cuda:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    torch.manual_seed(820)
    model = Strings(args).to(device)
    if world > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = DistributedDataParallel(model, device_ids=[device.index] if cuda else None)
    criterion = SpectralLoss().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
    torch.manual_seed(821 + rank)
    batches = list(recordings(args, device))

    for step in range(1, 10_000_000):
        mels, pitch, loudness, wanted = batches[step % len(batches)]
        noise = torch.rand_like(wanted) * 2 - 1
        made = model(mels, pitch, loudness, noise)
        loss = criterion(made, wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        optimizer.step()
        schedule.step()
        if args.examples_every and rank == 0 and step % args.examples_every == 0:
            sounds = [part[: args.examples].detach().cpu().numpy() for part in (made, wanted)]
            args.out.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(args.out / "latest.npz", made=sounds[0], wanted=sounds[1], rate=RATE)
        if rank == 0 and step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
