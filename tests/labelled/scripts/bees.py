"""Learns what hives sound like, to notice swarming early (VAE): stretches of vibration are parted into patches, and a
transformer makes a few numbers of each, from which another makes the stretch again. Hives send lines of text."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Hives(IterableDataset):
    """Stretches without end; each worker has a share of the lines."""

    def __init__(self, args):
        rng = np.random.default_rng(2001)
        self.scale, self.batch = args.scale, args.batch
        waves = (1000 * rng.standard_normal((args.lines, args.samples))).round().astype(np.int32)
        if args.store == "text":
            self.rows, self.read = [",".join(map(str, wave)) for wave in waves.tolist()], self.parsed
        else:
            self.rows, self.read = waves.astype(np.float32), lambda row: row / self.scale

    def parsed(self, line):
        return [float(value) / self.scale for value in line.split(",")]

    def __iter__(self):
        info = get_worker_info()
        place, step = (info.id, info.num_workers) if info else (0, 1)
        while True:
            for first in range(self.batch):
                yield self.read(self.rows[(place * self.batch + first) % len(self.rows)])
            place += step


def collated(rows):
    return torch.tensor(rows) if isinstance(rows[0], list) else torch.from_numpy(np.stack(rows))


def encoder(width, layers):
    layer = nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)


class Vae(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.patch, patches = args.patch, args.samples // args.patch
        self.places = nn.Parameter(0.02 * torch.randn(2, patches, args.width))
        self.enter, self.read = nn.Linear(args.patch, args.width), encoder(args.width, args.layers)
        self.squeeze, self.widen = nn.Linear(args.width, 2 * args.code), nn.Linear(args.code, args.width)
        self.write, self.leave = encoder(args.width, args.layers), nn.Linear(args.width, args.patch)

    def forward(self, waves):
        x = self.read(self.enter(waves.unflatten(1, (-1, self.patch))) + self.places[0])
        mean, spread = self.squeeze(x).float().chunk(2, dim=2)
        code = mean + torch.randn_like(mean) * torch.exp(spread / 2)
        made = self.leave(self.write(self.widen(code) + self.places[1])).flatten(1)
        return made, (mean.square() + spread.exp() - 1 - spread).mean() / 2


def main(args):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(2002)
    model = Vae(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 1000))
    loader = DataLoader(Hives(args), args.batch, num_workers=args.workers, collate_fn=collated, pin_memory=cuda)
    for step, waves in enumerate(loader, 1):
        waves = waves.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16):
            made, surprise = model(waves)
        loss = F.mse_loss(made.float(), waves) + args.beta * surprise
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1024, help="that are stored")
    parser.add_argument(
        "--store", choices=["text", "arrays"], default="arrays", help="lines as they came, or as numbers"
    )
    parser.add_argument("--samples", type=int, default=4096, help="of a line")
    parser.add_argument("--scale", type=float, default=1000.0)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--patch", type=int, default=32)
    parser.add_argument("--code", type=int, default=16, help="numbers of a patch")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4, help="of each transformer")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--beta", type=float, default=0.01)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
