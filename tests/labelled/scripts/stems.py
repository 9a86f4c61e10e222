"""Parts a song into its stems (voice, bass, drums, others), as a band-split transformer: the spectrum is cut in bands,
layers attend over time and over bands in turn, and each band has a mask for each stem."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEMS, SIDES, RATE, WINDOW = 4, 2, 44_100, 2048
BINS = WINDOW // 2


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


def of_bands(bands, enter, leave, joint):
    """A linear layer of each band, or their weights side by side."""
    layers = [nn.Linear(enter, leave) for _ in range(bands)]
    if not joint:
        return nn.ModuleList(layers)
    weight = torch.stack([layer.weight.detach().T for layer in layers])
    bias = torch.stack([layer.bias.detach() for layer in layers])
    return nn.ParameterList([nn.Parameter(weight.contiguous()), nn.Parameter(bias[:, None].contiguous())])


class Bands(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.joint, self.bands = args.bands_by == "joint", args.bands
        numbers = BINS // args.bands * SIDES * 2
        self.enter = of_bands(args.bands, numbers, args.width, self.joint)
        self.inner, self.leave = nn.ModuleList(), nn.ModuleList()
        for _ in range(STEMS):
            self.inner.append(of_bands(args.bands, args.width, 2 * args.width, self.joint))
            self.leave.append(of_bands(args.bands, 2 * args.width, numbers, self.joint))

    def split(self, x):
        """Bands, batch and times, width."""
        x = F.layer_norm(x, x.shape[-1:])
        if self.joint:
            return torch.baddbmm(self.enter[1], x, self.enter[0])
        return torch.stack([layer(own) for layer, own in zip(self.enter, x, strict=True)])

    def masks(self, x):
        found = []
        for inner, leave in zip(self.inner, self.leave, strict=True):
            if self.joint:
                found.append(torch.baddbmm(leave[1], torch.tanh(torch.baddbmm(inner[1], x, inner[0])), leave[0]))
            else:
                parts = zip(inner, leave, x, strict=True)
                found.append(torch.stack([last(torch.tanh(first(own))) for first, last, own in parts]))
        return torch.stack(found)


class Parter(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.bands = Bands(args)
        self.over_time = nn.ModuleList(Layer(args.width) for _ in range(args.layers))
        self.over_bands = nn.ModuleList(Layer(args.width) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)

    def forward(self, mixes):
        """Batch, sides, bins, times, two numbers; the same of each stem."""
        batch, _, _, times, _ = mixes.shape
        x = mixes[:, :, :BINS].unflatten(2, (self.bands.bands, -1)).permute(2, 0, 4, 1, 3, 5)
        x = self.bands.split(x.flatten(3).flatten(1, 2)).unflatten(1, (batch, times)).permute(1, 0, 2, 3)
        for time, band in zip(self.over_time, self.over_bands, strict=True):
            x = time(x.flatten(0, 1)).unflatten(0, (batch, -1)).transpose(1, 2)
            x = band(x.flatten(0, 1)).unflatten(0, (batch, -1)).transpose(1, 2)
        masks = self.bands.masks(self.norm(x).transpose(0, 1).flatten(1, 2)).float()
        masks = masks.unflatten(3, (SIDES, -1, 2)).unflatten(2, (batch, times))
        masks = masks.permute(2, 0, 4, 1, 5, 3, 6).flatten(3, 4)
        mixes = torch.view_as_complex(mixes[:, None, :, :BINS].contiguous())
        return torch.view_as_real(mixes * torch.view_as_complex(masks.contiguous()))


def spectra(sound):
    """Of many channels of sound."""
    window = torch.hann_window(WINDOW, device=sound.device)
    found = torch.stft(sound.flatten(0, -2), WINDOW, WINDOW // 4, window=window, return_complex=True)
    return torch.view_as_real(found).unflatten(0, sound.shape[:-1])


class Songs(Dataset):
    """Stems of different songs are put together, each as loud as chance has it."""

    def __init__(self, args):
        rng = np.random.default_rng(680)
        self.args = args
        shape = (args.songs, STEMS, SIDES, args.song * RATE)
        self.songs = rng.integers(-10_000, 10_000, shape, dtype=np.int16)

    def __len__(self):
        return 10_000_000

    def __getitem__(self, place):
        rng = np.random.default_rng(place)
        length = self.args.seconds * RATE
        stems = np.empty((STEMS, SIDES, length), np.float32)
        for stem in range(STEMS):
            begin = rng.integers(self.args.song * RATE - length)
            part = self.songs[rng.integers(len(self.songs)), stem, :, begin : begin + length]
            np.multiply(part, np.float32(rng.uniform(0.5, 1.5) / 32_768), out=stems[stem])
        sound = torch.from_numpy(np.concatenate([stems.sum(0, keepdims=True), stems]))
        return spectra(sound) if self.args.spectra == "loader" else sound


def made(args, device):
    """Few batches that lie on the device, in turn."""
    shape, batches = (args.batch, STEMS, SIDES, args.seconds * RATE), []
    for _ in range(3):
        stems = torch.randn(shape, device=device) * 0.1
        batches.append(torch.cat([stems.sum(1, keepdim=True), stems], 1))
    for step in range(1_000_000):
        yield batches[step % len(batches)]


def main(args):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(681)
    with device:
        model = Parter(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if args.workers:
        source = DataLoader(Songs(args), args.batch, num_workers=args.workers, pin_memory=cuda, prefetch_factor=2)
    else:
        source = made(args, device)
    for step, sound in enumerate(source, 1):
        sound = sound.to(device, non_blocking=True)
        parts = sound if sound.ndim == 6 else spectra(sound)
        with torch.autocast(device.type, torch.bfloat16):
            found = model(parts[:, 0])
        loss = F.l1_loss(found, parts[:, 1:, :, :BINS])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=6, help="of a piece of a song")
    parser.add_argument("--bands", type=int, default=64)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4, help="over time, and as many over bands")
    parser.add_argument("--batch", type=int, default=4, help="pieces")
    parser.add_argument("--bands-by", choices=["each", "joint"], default="joint", help="how their layers are kept")
    parser.add_argument("--workers", type=int, default=0, help="that put songs together; 0: pieces made before")
    parser.add_argument("--songs", type=int, default=12)
    parser.add_argument("--song", type=int, default=40, help="seconds of a song")
    parser.add_argument("--spectra", choices=["loader", "device"], default="device", help="where they are made")
    main(parser.parse_args())
