"""Forecasts many series of measurements with a transformer over patches of them."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

cli = argparse.ArgumentParser(description=__doc__)
cli.add_argument("--channels", type=int, default=8, help="series that were measured together")
cli.add_argument("--window", type=int, default=1024)
cli.add_argument("--patch", type=int, default=16)
cli.add_argument("--horizon", type=int, default=96)
cli.add_argument("--width", type=int, default=768)
cli.add_argument("--layers", type=int, default=6)
cli.add_argument("--batch", type=int, default=160, help="windows")
cli.add_argument(
    "--read", choices=["folded", "each", "mixed"], default="folded",
    help="series apart, all at once or one after the other; or all of them in each patch",
)  # fmt: skip
cli.add_argument("--attention", choices=["fused", "plain"], default="fused")
cli.add_argument("--clean", action="store_true", help="cut windows and clean them as they are loaded")
cli.add_argument("--workers", type=int, default=4, help="that do so")
cli.add_argument("--ahead", action="store_true", help="copy the next batch while one is trained on")
a = cli.parse_args()

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")


class Windows(torch.utils.data.Dataset):
    """Cut from the whole record; spikes are taken out, and each series is scaled by its own quartiles."""

    def __init__(self):
        steps = np.random.default_rng(0).standard_normal((a.channels, 200_000), dtype=np.float32)
        self.record = np.cumsum(steps, axis=1)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, number):
        begin = number * 7919 % (self.record.shape[1] - a.window - a.horizon)
        raw = self.record[:, begin : begin + a.window + a.horizon]
        near = np.lib.stride_tricks.sliding_window_view(np.pad(raw, ((0, 0), (2, 2)), mode="edge"), 5, axis=1)
        middle = np.median(near, axis=2)
        usual = np.median(np.abs(near - middle[:, :, None]), axis=2)
        clean = np.where(np.abs(raw - middle) > 6 * usual + 1e-6, middle, raw)
        low, centre, high = np.percentile(clean[:, : a.window], (25, 50, 75), axis=1, keepdims=True)
        clean = ((clean - centre) / (high - low + 1e-6)).astype(np.float32)
        return clean[:, : a.window], clean[:, a.window :]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(a.width), nn.LayerNorm(a.width)
        self.qkv, self.out = nn.Linear(a.width, 3 * a.width), nn.Linear(a.width, a.width)
        self.widen, self.narrow = nn.Linear(a.width, 4 * a.width), nn.Linear(4 * a.width, a.width)

    def attend(self, q, k, v):
        if a.attention == "fused":
            return F.scaled_dot_product_attention(q, k, v)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return scores.softmax(-1).to(v.dtype) @ v

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, max(1, a.width // 64), -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x))))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        places, own = a.window // a.patch, a.channels if a.read == "mixed" else 1
        self.embed, self.places = nn.Linear(own * a.patch, a.width), nn.Parameter(torch.randn(places, a.width) * 0.02)
        self.layers = nn.ModuleList(Layer() for _ in range(a.layers))
        self.norm, self.head = nn.LayerNorm(a.width), nn.Linear(places * a.width, own * a.horizon)

    def one(self, patches):
        """From (sequences, places, numbers of a patch) to what is to come."""
        x = self.embed(patches) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).flatten(1))

    def forward(self, past):
        mean, spread = past.mean(-1, keepdim=True), past.std(-1, keepdim=True) + 1e-5
        patches = ((past - mean) / spread).unflatten(-1, (-1, a.patch))
        if a.read == "mixed":
            found = self.one(patches.transpose(1, 2).flatten(2)).unflatten(1, (a.channels, -1))
        elif a.read == "folded":
            found = self.one(patches.flatten(0, 1)).unflatten(0, (-1, a.channels))
        else:
            found = torch.stack([self.one(patches[:, n]) for n in range(a.channels)], 1)
        return found * spread + mean


def in_memory():
    """Windows that were cut long ago."""
    made = []
    for _ in range(2):
        both = torch.randn(a.batch, a.channels, a.window), torch.randn(a.batch, a.channels, a.horizon)
        made.append([part.pin_memory() if CUDA else part for part in both])
    while True:
        yield from made


def on_device(source):
    for past, future in source:
        yield past.to(DEVICE, non_blocking=True), future.to(DEVICE, non_blocking=True)


def copied_ahead(source):
    copier, trainer = torch.cuda.Stream(), torch.cuda.current_stream()
    batches = on_device(source)
    with torch.cuda.stream(copier):
        coming = next(batches)
    while True:
        trainer.wait_stream(copier)
        batch = coming
        for part in batch:
            part.record_stream(trainer)
        with torch.cuda.stream(copier):
            coming = next(batches)
        yield batch


def train():
    torch.manual_seed(2)
    with DEVICE:
        model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    source = in_memory()
    if a.clean:
        source = torch.utils.data.DataLoader(Windows(), a.batch, num_workers=a.workers, pin_memory=CUDA)
    for step, (past, future) in enumerate(copied_ahead(source) if a.ahead and CUDA else on_device(source), 1):
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            found = model(past)
        loss = F.smooth_l1_loss(found.float(), future)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print("step", step, "loss", round(loss.item(), 4), flush=True)


if __name__ == "__main__":
    train()
