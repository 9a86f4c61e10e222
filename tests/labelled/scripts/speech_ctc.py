"""Trains a speech recogniser: log-mel features, convolutions, a transformer encoder and CTC. Sound is made up."""

import argparse
import math
import os
from collections import defaultdict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

RATE, WINDOW, HOP, MELS = 16000, 400, 160, 80
LETTERS = 32  # 0 is the blank
LETTERS_PER_SECOND = 8

p = argparse.ArgumentParser()
p.add_argument("--dim", type=int, default=1024)
p.add_argument("--depth", type=int, default=16)
p.add_argument("--bs", type=int, default=32)
p.add_argument("--seconds", type=float, default=10.0)
p.add_argument("--short", type=float, default=0.0,
               help="seconds by which rank 0's clips, sorted by length, are shorter; the last rank has "
                    "those that are as much longer")  # fmt: skip
p.add_argument("--num-workers", type=int, default=8)
p.add_argument("--stored", action="store_true", help="features have been stored, rather than made from sound")
p.add_argument("--amp", action="store_true")
p.add_argument("--decode", type=int, default=0, metavar="N", help="decode clips to look at after every N steps")
p.add_argument("--clips", type=int, default=4, help="clips to decode")
p.add_argument("--beams", type=int, default=8)
args = p.parse_args()

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))
LOCAL = int(os.environ.get("LOCAL_RANK", "0"))
seconds = args.seconds
if args.short:
    seconds += args.short if RANK else -args.short


def mel_filters():
    """Triangles on the mel scale, as a matrix."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, MELS + 2) / 2595) - 1)
    freqs = torch.linspace(0, RATE / 2, WINDOW // 2 + 1)
    rise = (freqs - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - freqs) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rise, fall).clamp(min=0)


class Clips(Dataset):
    def __init__(self):
        self.mel, self.window = mel_filters(), torch.hann_window(WINDOW)
        self.frames = int(seconds * RATE / HOP)
        self.store = torch.randn(64, self.frames, MELS) if args.stored else None

    def __len__(self):
        return 1_000_000

    def features(self, gen):
        wave = torch.randn(int(seconds * RATE), generator=gen)
        # speed perturbation
        speed = 0.9 + 0.2 * torch.rand(1, generator=gen).item()
        wave = F.interpolate(wave[None, None], scale_factor=1 / speed, mode="linear")[0, 0]
        # a room's echo, half a second of it
        room = torch.randn(RATE // 2, generator=gen) * torch.exp(-torch.arange(RATE // 2) / 2000.0)
        size = 1 << (len(wave) + len(room)).bit_length()
        wave = torch.fft.irfft(torch.fft.rfft(wave, size) * torch.fft.rfft(room, size), size)[: len(wave)]
        wave = wave / wave.std() + 0.05 * torch.randn(len(wave), generator=gen)
        spec = torch.stft(wave, WINDOW, HOP, window=self.window, return_complex=True).abs().square()
        logmel = (self.mel @ spec).clamp(min=1e-10).log().T
        logmel = (logmel - logmel.mean()) / logmel.std()
        out = torch.zeros(self.frames, MELS)
        n = min(self.frames, len(logmel))
        out[:n] = logmel[:n]
        return out

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(i)
        x = self.features(gen) if self.store is None else self.store[i % len(self.store)]
        y = torch.randint(1, LETTERS, (int(seconds * LETTERS_PER_SECOND),), generator=torch.Generator().manual_seed(i))
        return x, y


class Recogniser(nn.Module):
    def __init__(self, d):
        super().__init__()
        c = d // 16
        self.sub = nn.Sequential(nn.Conv2d(1, c, 3, 2, 1), nn.ReLU(), nn.Conv2d(c, c, 3, 2, 1), nn.ReLU())
        self.inp = nn.Linear(c * (MELS // 4), d)
        layer = nn.TransformerEncoderLayer(
            d, max(1, d // 64), 4 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.enc = nn.TransformerEncoder(layer, args.depth, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.out = nn.Linear(d, LETTERS)

    def forward(self, x):
        x = self.sub(x.unsqueeze(1)).transpose(1, 2).flatten(2)
        return self.out(self.enc(self.inp(x)))


def beam_search(logp):
    """The likeliest text of a clip, by the sum over all ways to say it (prefix beam search)."""
    beams = {(): (0.0, -math.inf)}
    for frame in logp:
        best = np.argsort(frame)[-args.beams :]
        scores = defaultdict(lambda: (-math.inf, -math.inf))
        for text, (blank, letter) in beams.items():
            for s in best.tolist():
                q = float(frame[s])
                if s == 0:
                    b, o = scores[text]
                    scores[text] = (np.logaddexp(b, np.logaddexp(blank, letter) + q), o)
                elif text and text[-1] == s:
                    b, o = scores[text]
                    scores[text] = (b, np.logaddexp(o, letter + q))
                    b, o = scores[(*text, s)]
                    scores[(*text, s)] = (b, np.logaddexp(o, blank + q))
                else:
                    b, o = scores[(*text, s)]
                    scores[(*text, s)] = (b, np.logaddexp(o, np.logaddexp(blank, letter) + q))
        beams = dict(sorted(scores.items(), key=lambda item: -np.logaddexp(*item[1]))[: args.beams])
    return max(beams, key=lambda text: np.logaddexp(*beams[text]))


dev = torch.device(f"cuda:{LOCAL}" if torch.cuda.is_available() else "cpu")
if dev.type == "cuda":
    torch.cuda.set_device(dev)
if WORLD > 1:
    torch.distributed.init_process_group("nccl" if dev.type == "cuda" else "gloo")
torch.manual_seed(42)
net = Recogniser(args.dim).to(dev)
if WORLD > 1:
    net = DDP(net, device_ids=[LOCAL] if dev.type == "cuda" else None)
opt = torch.optim.AdamW(net.parameters(), lr=1e-6, fused=True)
loader = DataLoader(Clips(), args.bs, num_workers=args.num_workers, pin_memory=dev.type == "cuda")
for it, (x, y) in enumerate(loader, 1):
    x = x.to(dev, non_blocking=True)
    with torch.autocast(dev.type, dtype=torch.bfloat16, enabled=args.amp):
        logits = net(x)
    logp = F.log_softmax(logits.float(), dim=-1)
    times = torch.full((len(x),), logp.shape[1], dtype=torch.long)
    sizes = torch.full((len(x),), y.shape[1], dtype=torch.long)
    loss = F.ctc_loss(logp.transpose(0, 1), y.to(dev, non_blocking=True), times, sizes, zero_infinity=True)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if args.decode and it % args.decode == 0 and RANK == 0:
        for found, truth in zip(logp.detach()[: args.clips].cpu().numpy(), y, strict=False):
            text = "".join(chr(96 + s) for s in beam_search(found))
            print(it, "said", "".join(chr(96 + s) for s in truth.tolist()), "heard", text)
    if it % 50 == 0 and RANK == 0:
        print(f"iteration {it} loss {loss.item():.3f}")
