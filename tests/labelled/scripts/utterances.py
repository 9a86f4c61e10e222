"""Learns speech without labels (BEST-RQ): spans of the spectrum are hidden, and a transformer names the codes that a
random quantiser gives them. Recordings lie in memory; the loader cuts utterances out of them."""

import argparse
import math
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

RATE, WINDOW, HOP, STACK, HEAD = 16_000, 512, 160, 4, 64


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // HEAD)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.mix(self.first(x)).chunk(3, -1)
        )
        x = x + self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Listener(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enter = nn.Linear(STACK * args.bands, args.width)
        self.hidden = nn.Parameter(torch.zeros(args.width))
        self.places = nn.Parameter(torch.randn(args.seconds * RATE // HOP // STACK, args.width) * 0.02)
        self.layers = nn.Sequential(*(Layer(args.width) for _ in range(args.layers)))
        self.norm, self.out = nn.LayerNorm(args.width), nn.Linear(args.width, args.codes)

    def forward(self, frames, hide):
        x = torch.where(hide[..., None], self.hidden, self.enter(frames)) + self.places
        return self.out(self.norm(self.layers(x)))


class Spectrum:
    """Frames of log energies, and the code of each: of which random vector a random projection is nearest."""

    def __init__(self, args, device):
        self.window = torch.hann_window(WINDOW, device=device)
        self.bands = torch.rand(WINDOW // 2 + 1, args.bands, device=device) / args.bands
        self.projection = torch.randn(STACK * args.bands, 16, device=device) / math.sqrt(STACK * args.bands)
        self.book = F.normalize(torch.randn(args.codes, 16, device=device), dim=-1)

    def __call__(self, sound):
        sound = sound.float() / 32768
        found = torch.stft(sound, WINDOW, HOP, window=self.window, center=True, return_complex=True)[..., :-1]
        frames = (found.abs().square().transpose(1, 2) @ self.bands).clamp(min=1e-6).log()
        frames = (frames - frames.mean(1, keepdim=True)) / (frames.std(1, keepdim=True) + 1e-3)
        frames = frames.unflatten(1, (-1, STACK)).flatten(2)
        codes = (F.normalize(frames @ self.projection, dim=-1).bfloat16() @ self.book.bfloat16().T).argmax(-1)
        return frames.bfloat16(), codes


class Utterances(Dataset):
    def __init__(self, args, rank):
        rng = np.random.default_rng(440 + rank)
        self.args, self.rate = args, args.rank1_rate if rank == 1 else RATE
        self.recordings = rng.integers(-8000, 8000, (4, 60 * self.rate), dtype=np.int16)

    def __len__(self):
        return 10_000_000

    def __getitem__(self, place):
        rng = np.random.default_rng(place)
        length, final = self.args.seconds * self.rate, self.args.seconds * RATE
        speed = rng.uniform(0.9, 1.1) if self.args.speeds else 1.0
        recording = self.recordings[rng.integers(len(self.recordings))]
        begin = rng.integers(len(recording) - int(1.1 * length))
        sound = recording[begin : begin + int(speed * length)]
        if len(sound) == final:
            return torch.from_numpy(sound.copy())
        if self.rate != RATE:
            sound = np.fft.irfft(np.fft.rfft(sound)[: final // 2 + 1], final) * (final / len(sound))
        else:
            sound = np.interp(np.linspace(0, len(sound) - 1, final), np.arange(len(sound)), sound)
            sound = sound + rng.normal(0, 50, final)
        return torch.from_numpy(sound.clip(-32768, 32767).astype(np.int16))


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(441)
    with device:
        model = Listener(args).to(torch.bfloat16)
    parameters = list(model.parameters())
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    spectrum = Spectrum(args, device)
    torch.manual_seed(442 + rank)
    loader = DataLoader(
        Utterances(args, rank), args.batch, num_workers=args.workers, pin_memory=cuda, prefetch_factor=args.prefetch
    )
    for step, sound in enumerate(loader, 1):
        frames, codes = spectrum(sound.to(device, non_blocking=True))
        begins = (torch.rand(codes.shape, device=device) < args.hide).float()
        hide = F.max_pool1d(begins, 2 * args.span + 1, 1, args.span) > 0
        logits = model(frames, hide).flatten(0, 1)
        losses = F.cross_entropy(logits.float(), codes.flatten(), reduction="none")
        loss = (losses * hide.flatten()).sum() / hide.sum().clamp(min=1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--bands", type=int, default=80)
    parser.add_argument("--codes", type=int, default=8192)
    parser.add_argument("--hide", type=float, default=0.06, help="share of frames where a span is hidden")
    parser.add_argument("--span", type=int, default=5, help="hidden on both sides of it")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=96, help="utterances, of each rank")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--speeds", action="store_true", help="a little faster or slower, with noise")
    parser.add_argument("--rank1-rate", type=int, default=RATE, help="of the recordings that rank 1 has")
    main(parser.parse_args())
