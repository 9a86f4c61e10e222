"""Learns from recordings of the brain (EEG) by themselves: a stretch of a channel is a token, some tokens are hidden,
and what a transformer makes of them must be more like the hidden stretch than like all others of the recording."""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // 64)
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
        self.patch = args.patch
        self.enter, self.aim = nn.Linear(args.patch, args.width), nn.Linear(args.patch, args.code)
        self.hidden = nn.Parameter(torch.zeros(args.width))
        self.channels = nn.Parameter(torch.randn(max(args.channels), 1, args.width) * 0.02)
        self.times = nn.Parameter(torch.randn(args.samples // args.patch, args.width) * 0.02)
        self.layers = nn.Sequential(*(Layer(args.width) for _ in range(args.layers)))
        self.norm, self.out = nn.LayerNorm(args.width), nn.Linear(args.width, args.code)

    def forward(self, parts):
        """Of each part, recordings of as many channels and what is hidden of them: the mean loss over recordings."""
        losses = [self.contrast(recordings, hide) for recordings, hide in parts]
        return torch.cat(losses).mean()

    def contrast(self, recordings, hide):
        x = recordings.to(self.enter.weight.dtype).unflatten(2, (-1, self.patch))
        wanted = F.normalize(self.aim(x).flatten(1, 2), dim=-1)
        x = torch.where(hide[..., None], self.hidden, self.enter(x))
        x = (x + self.channels[: x.shape[1]] + self.times).flatten(1, 2)
        found = F.normalize(self.out(self.norm(self.layers(x))), dim=-1)
        alike = (found @ wanted.transpose(1, 2)).float() / 0.1
        own = torch.arange(alike.shape[1], device=alike.device).expand(alike.shape[:2])
        losses, hide = F.cross_entropy(alike.transpose(1, 2), own, reduction="none"), hide.flatten(1)
        return (losses * hide).sum(1) / hide.sum(1).clamp(min=1)


class Sessions(Dataset):
    """Long recordings, of which short ones are cut; mains hum and drift are filtered out."""

    def __init__(self, args, rank):
        rng = np.random.default_rng(550 + rank)
        self.args = args
        self.sessions = rng.standard_normal((args.sessions, args.channels[0], args.session), dtype=np.float32)
        if args.filter == "once":
            self.sessions = np.stack([self.filtered(session) for session in self.sessions])

    @staticmethod
    def filtered(session):
        waves = np.fft.rfft(session)
        pace = np.linspace(0, 128, waves.shape[1])
        waves[:, (pace < 0.5) | (np.abs(pace - 50) < 1) | (pace > 75)] = 0
        return np.fft.irfft(waves, session.shape[1]).astype(np.float32)

    def __len__(self):
        return 10_000_000

    def __getitem__(self, place):
        rng = np.random.default_rng(place)
        session = self.sessions[rng.integers(len(self.sessions))]
        if self.args.filter == "each":
            session = self.filtered(session)
        begin = rng.integers(self.args.session - self.args.samples + 1)
        return torch.from_numpy(session[:, begin : begin + self.args.samples].copy())


def parts_of(args, rank, ranks):
    """Channels and number of the recordings that a rank has in a step: sites measure with as many electrodes."""
    if args.sites == "apart":
        return [(args.channels[rank % len(args.channels)], args.batch)]
    return [(channels, args.batch // len(args.channels)) for channels in args.channels]


class Kept:
    """Few batches in the host's memory, in turn; the next may be copied to the device while one is worked on."""

    def __init__(self, args, rank, ranks, device):
        self.device = device
        self.stream = torch.cuda.Stream() if args.ahead and device.type == "cuda" else None
        self.batches = []
        for _ in range(2):
            batch = []
            for channels, count in parts_of(args, rank, ranks):
                stored = torch.randn(count, channels, args.samples, device=device, dtype=torch.float16).cpu()
                if device.type != "cuda":
                    batch.append(stored.float())
                elif args.pin == "stored":
                    batch.append(stored.pin_memory().float())
                else:
                    batch.append(stored.float().pin_memory())
            self.batches.append(batch)

    def copied(self, place):
        return [part.to(self.device, non_blocking=True) for part in self.batches[place % len(self.batches)]]

    def __iter__(self):
        if not self.stream:
            for place in range(1_000_000):
                yield self.copied(place)
        coming, main = None, torch.cuda.current_stream()
        for place in range(1_000_000):
            now = coming
            with torch.cuda.stream(self.stream):
                coming = self.copied(place)
            if now:
                yield now
            main.wait_stream(self.stream)
            for part in coming:
                part.record_stream(main)


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(551)
    with device:
        model = Listener(args).to(torch.bfloat16)
    parameters = list(model.parameters())
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    torch.manual_seed(552 + rank)
    if args.workers:
        source = DataLoader(Sessions(args, rank), args.batch, num_workers=args.workers, pin_memory=cuda)
    else:
        source = Kept(args, rank, ranks, device)
    torch.manual_seed(553 + rank)
    for step, recordings in enumerate(source, 1):
        if args.workers:
            recordings = [recordings.to(device, non_blocking=True)]
        parts = []
        for some in recordings:
            shape = (*some.shape[:2], some.shape[2] // args.patch)
            parts.append((some, torch.rand(shape, device=device) < args.hide))
        loss = model(parts)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, nargs="+", default=[64], help="of the recordings of each site")
    parser.add_argument(
        "--sites", choices=["mixed", "apart"], default="mixed", help="a rank has all of them, or its own"
    )
    parser.add_argument("--samples", type=int, default=4096, help="of a recording")
    parser.add_argument("--patch", type=int, default=512, help="samples of a token")
    parser.add_argument("--hide", type=float, default=0.3, help="share of the tokens")
    parser.add_argument("--code", type=int, default=128)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=512, help="recordings, of each rank")
    parser.add_argument(
        "--pin", choices=["stored", "converted"], default="converted", help="what is put in pinned memory"
    )
    parser.add_argument("--ahead", action="store_true", help="copy a batch while the one before is worked on")
    parser.add_argument("--workers", type=int, default=0, help="that cut recordings from sessions; 0: kept batches")
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--session", type=int, default=16384, help="samples of one")
    parser.add_argument("--filter", choices=["once", "each"], default="once", help="a session, or before each cut")
    main(parser.parse_args())
