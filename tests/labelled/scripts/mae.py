"""Learns pictures without labels by a masked autoencoder: an encoder of blocks of timm sees a quarter of the patches, a
light decoder is to paint the others. Means of each kind of picture show how well its features tell kinds apart."""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from timm.models.vision_transformer import Block
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PATCH = 16


class Autoencoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args, self.count = args, (args.size // PATCH) ** 2
        inner, pixels = args.decoder_width, 3 * PATCH**2
        self.patches = nn.Linear(pixels, args.width)
        self.places = nn.Parameter(0.02 * torch.randn(self.count, args.width))
        heads = max(1, args.width // 64)
        self.encoder = nn.Sequential(*(Block(args.width, heads, qkv_bias=True) for _ in range(args.layers)))
        self.norm, self.narrow = nn.LayerNorm(args.width), nn.Linear(args.width, inner)
        self.masked = nn.Parameter(0.02 * torch.randn(inner))
        self.decoder_places = nn.Parameter(0.02 * torch.randn(self.count, inner))
        heads = max(1, inner // 64)
        self.decoder = nn.Sequential(*(Block(inner, heads, qkv_bias=True) for _ in range(args.decoder_layers)))
        self.paint = nn.Sequential(nn.LayerNorm(inner), nn.Linear(inner, pixels))

    def choose(self, x, seen, order):
        """The patches that are seen."""
        if self.args.masks == "each":
            return torch.stack([one[own] for one, own in zip(x, seen, strict=True)])
        return x.gather(1, order[..., None].expand(-1, -1, x.shape[2]))

    def fill(self, x, seen, order):
        """All patches, with the same vector wherever one was not seen."""
        if self.args.masks == "each":
            filled = []
            for one, own in zip(x, seen, strict=True):
                rows = self.masked.to(x.dtype).repeat(self.count, 1)
                rows[own] = one
                filled.append(rows)
            return torch.stack(filled)
        whole = self.masked.to(x.dtype).expand(len(x), self.count, -1)
        return whole.scatter(1, order[..., None].expand(-1, -1, x.shape[2]), x)

    def forward(self, pictures, noise):
        truth = F.pixel_unshuffle(pictures, PATCH).flatten(2).transpose(1, 2)
        order = noise.topk(self.count // 4, sorted=False).indices.sort(1).values
        seen = torch.zeros_like(noise, dtype=torch.bool).scatter(1, order, True)
        x = self.choose(self.patches(truth) + self.places, seen, order)
        x = self.norm(self.encoder(x))
        features = x.mean(1).detach().float()
        with torch.autocast(pictures.device.type, torch.bfloat16, enabled=self.args.decode == "bf16"):
            x = x.float() if self.args.decode == "fp32" else x
            x = self.fill(self.narrow(x), seen, order) + self.decoder_places
            found = self.paint(self.decoder(x)).float()
        truth = F.layer_norm(truth.float(), truth.shape[2:])
        off = (found - truth).square().mean(2)
        return (off * ~seen).sum() / (~seen).sum(), features


class Means:
    """The mean feature of each kind of picture, over all ranks, and how many pictures are nearest to their own."""

    def __init__(self, args, device):
        self.args = args
        self.means = torch.zeros(args.kinds, args.width, device=device)
        self.right = torch.zeros((), device=device)

    @torch.no_grad()
    def follow(self, features, kinds):
        self.right += (torch.cdist(features, self.means).argmin(1) == kinds).float().mean()
        sums = torch.zeros_like(self.means).index_add_(0, kinds, features)
        counts = torch.zeros_like(self.means[:, :1]).index_add_(0, kinds, torch.ones_like(features[:, :1]))
        if dist.is_initialized():
            if self.args.probe == "each":
                for total, count in zip(sums, counts, strict=True):
                    dist.all_reduce(total)
                    dist.all_reduce(count)
            else:
                both = torch.cat([sums, counts], 1)
                dist.all_reduce(both)
                sums, counts = both.split([sums.shape[1], 1], 1)
        met = counts > 0
        self.means = torch.where(met, 0.9 * self.means + 0.1 * sums / counts.clamp(min=1), self.means)


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(300)
    with device:
        model = Autoencoder(args)
    parameters = list(model.parameters())
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, betas=(0.9, 0.95), weight_decay=0.05, fused=True)
    means = Means(args, device) if args.probe != "none" else None
    torch.manual_seed(301 + rank)
    rng = np.random.default_rng(301 + rank)
    pictures = torch.from_numpy(rng.integers(0, 256, (2, args.batch, 3, args.size, args.size), dtype=np.uint8))
    kinds = torch.from_numpy(rng.integers(0, args.kinds, (2, args.batch)))
    if cuda:
        pictures, kinds = pictures.pin_memory(), kinds.pin_memory()
    for step in range(1, 1_000_000):
        some = pictures[step % 2].to(device, non_blocking=True) / 255 - 0.5
        own = kinds[step % 2].to(device, non_blocking=True)
        noise = torch.rand(args.batch, (args.size // PATCH) ** 2, device=device)
        with torch.autocast(device.type, torch.bfloat16):
            loss, features = model(some, noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if means:
            means.follow(features, own)
        if step % 100 == 0 and rank == 0:
            right = f", {means.right.item() / step:.3f} are nearest to their own" if means else ""
            print(f"step {step}: loss {loss.item():.4f}{right}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=224, help="of a picture, in pixels")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--decoder-width", type=int, default=512)
    parser.add_argument("--decoder-layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256, help="of each rank")
    parser.add_argument(
        "--masks", choices=["joint", "each"], default="joint", help="how patches are taken out and put in"
    )
    parser.add_argument("--decode", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--kinds", type=int, default=1000)
    parser.add_argument("--probe", choices=["none", "joint", "each"], default="none", help="how ranks share the means")
    main(parser.parse_args())
