"""Separates voices that speak at once in a room, by torchaudio's Conv-TasNet; which output is whose voice is free."""

import argparse
from itertools import permutations

import numpy as np
import torch
from scipy.signal import fftconvolve
from torch.utils.data import DataLoader, Dataset
from torchaudio.models import ConvTasNet

RATE = 8000


class Mixtures(Dataset):
    """Voices, each with another echo. They are few: what matters here is the work, not what is learnt."""

    def __init__(self, opt):
        rng = np.random.default_rng(0)
        self.opt = opt
        self.said = rng.standard_normal((32, int(RATE * opt.seconds))).astype(np.float32)
        fading = np.exp(-np.arange(int(RATE * opt.echo)) / (RATE * opt.echo / 6))
        self.rooms = (rng.standard_normal((16, len(fading))) * fading).astype(np.float32)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, place):
        rng = np.random.default_rng(place)
        heard = []
        for _ in range(self.opt.voices):
            said, room = self.said[rng.integers(len(self.said))], self.rooms[rng.integers(len(self.rooms))]
            echoed = fftconvolve(said, room) if self.opt.echoes == "fft" else np.convolve(said, room)
            heard.append(echoed[: len(said)].astype(np.float32) * rng.uniform(0.3, 1))
        return torch.from_numpy(np.stack(heard).astype(np.float32))


def likeness(found, truth):
    """How like the truth a signal is, in dB, whatever its loudness (SI-SDR); of the last dimension."""
    truth, found = truth - truth.mean(-1, keepdim=True), found - found.mean(-1, keepdim=True)
    same = (found * truth).sum(-1, keepdim=True) / (truth.square().sum(-1, keepdim=True) + 1e-8) * truth
    return 10 * torch.log10(same.square().sum(-1) / ((found - same).square().sum(-1) + 1e-8) + 1e-8)


def loss_of_best(found, truth, orders):
    """With voices put to outputs as fits best, sample by sample."""
    total = 0
    for one, own in zip(found, truth, strict=True):
        best = None
        for order in orders:
            loss = -likeness(one, own[order]).mean()
            if best is None or loss < best:
                best = loss
        total = total + best
    return total / len(found)


def loss_of_best_at_once(found, truth, orders):
    """The same, from each output's likeness to each voice."""
    pairs = likeness(found[:, :, None], truth[:, None])
    outputs = torch.arange(truth.shape[1], device=found.device)
    return -pairs[:, outputs, orders].mean(2).max(1).values.mean()


def main(opt):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(270)
    model = ConvTasNet(
        num_sources=opt.voices, msk_num_hidden_feats=opt.width, msk_num_layers=opt.layers, msk_num_stacks=opt.stacks,
        msk_activate="relu",
    ).to(device)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, fused=True)
    orders = torch.tensor(list(permutations(range(opt.voices))), device=device)
    of_best = loss_of_best if opt.orders == "each" else loss_of_best_at_once
    loader = DataLoader(
        Mixtures(opt), opt.batch, num_workers=opt.workers, pin_memory=cuda, persistent_workers=opt.workers > 0
    )
    for step, voices in enumerate(loader, 1):
        voices = voices.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16):
            found = model(voices.sum(1, keepdim=True))
        loss = of_best(found.float(), voices, orders)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: {-loss.item():.2f} dB", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--voices", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--echo", type=float, default=0.5, help="seconds of it")
    parser.add_argument("--echoes", choices=["fft", "direct"], default="fft", help="how they are computed")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6, help="of a stack")
    parser.add_argument("--stacks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--orders", choices=["at_once", "each"], default="at_once", help="of voices, that are tried")
    main(parser.parse_args())
