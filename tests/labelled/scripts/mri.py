"""Reconstructs magnetic resonance images from part of what many coils measure (k-space): small networks and steps that
hold the picture to the measurements take turns. One GPU or DDP."""

import argparse
import itertools
import os
import zlib

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

MIDDLE = 24
"""Columns in the middle, all of which are measured."""


def pictures_of(measured):
    """Of each coil."""
    return torch.fft.ifft2(measured, norm="ortho")


def joined(coils):
    """One picture without phase from those of all coils."""
    return torch.view_as_real(coils).square().sum((-1, -4)).sqrt()


class Network(nn.Module):
    def __init__(self, args):
        super().__init__()
        widths = [2] + [args.width] * (args.deep - 1) + [2]
        self.layers = nn.ModuleList(
            nn.Conv2d(enter, leave, 3, padding=1) for enter, leave in itertools.pairwise(widths)
        )
        self.step = nn.Parameter(torch.tensor(0.5))

    def forward(self, picture):
        x = torch.view_as_real(picture).permute(0, 3, 1, 2)
        for place, layer in enumerate(self.layers):
            x = layer(F.relu(x) if place else x)
        return torch.view_as_complex(x.permute(0, 2, 3, 1).float().contiguous())


class Reconstruction(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.networks = nn.ModuleList(Network(args) for _ in range(args.networks))

    def forward(self, measured, mask):
        """Columns in the middle of k-space are the first and the last ones."""
        wide = measured.shape[-1]
        middle = torch.arange(wide, device=measured.device)
        middle = (middle < MIDDLE // 2) | (middle >= wide - MIDDLE // 2)
        coarse = pictures_of(measured * middle)
        views = coarse / joined(coarse)[:, None].clamp(min=1e-6)
        mask = mask[:, None, None]
        picture = (views.conj() * pictures_of(measured * mask)).sum(1)
        for network in self.networks:
            wrong = (torch.fft.fft2(views * picture[:, None], norm="ortho") - measured) * mask
            picture = picture - network.step * (views.conj() * pictures_of(wrong)).sum(1) + network(picture)
        return picture.abs()


class Scans(Dataset):
    """Slices as they were stored (integers, maybe compressed), and a mask for each that says what is measured."""

    def __init__(self, args, rank):
        rng = np.random.default_rng(770 + rank)
        self.shape, self.there = (args.coils, args.size, args.size), args.pictures == "device"
        self.packed, self.slices = args.gzip_rank == rank, []
        for _ in range(args.slices):
            numbers = np.clip(rng.standard_normal((*self.shape, 2), np.float32) * 400, -32_000, 32_000)
            numbers = numbers.astype(np.int16)
            self.slices.append(zlib.compress(numbers.tobytes(), 1) if self.packed else numbers)

    def __len__(self):
        return 10_000_000

    def __getitem__(self, place):
        rng = np.random.default_rng(place)
        numbers = self.slices[rng.integers(len(self.slices))]
        if self.packed:
            numbers = np.frombuffer(zlib.decompress(numbers), np.int16).reshape(*self.shape, 2)
        measured = torch.view_as_complex(torch.from_numpy(numbers.astype(np.float32)).div_(400))
        mask = rng.random(self.shape[-1], np.float32) < 0.25
        mask[: MIDDLE // 2], mask[-MIDDLE // 2 :] = True, True
        mask = torch.from_numpy(mask)
        return (measured, mask) if self.there else (measured, mask, joined(pictures_of(measured)))


class Kept:
    """Few batches in pinned memory, in turn; the next may be copied to the device while one is worked on."""

    def __init__(self, args, rank, device):
        self.device, cuda = device, device.type == "cuda"
        self.stream = torch.cuda.Stream() if args.ahead and cuda else None
        generator, shape = torch.Generator(device).manual_seed(771 + rank), (args.batch, args.coils, *[args.size] * 2)
        self.batches = []
        for _ in range(2):
            measured = torch.randn(shape, dtype=torch.complex64, device=device, generator=generator)
            mask = torch.rand(args.batch, args.size, device=device, generator=generator) < 0.3
            both = [part.cpu() for part in (measured, mask)]
            self.batches.append([part.pin_memory() for part in both] if cuda else both)

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
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(772)
    with device:
        model = Reconstruction(args).to(memory_format=torch.channels_last)
    parameters = list(model.parameters())
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    if args.workers:
        scans = Scans(args, rank)
        source = DataLoader(scans, args.batch, num_workers=args.workers, pin_memory=cuda, prefetch_factor=4)
    else:
        source = Kept(args, rank, device)
    for step, batch in enumerate(source, 1):
        measured, mask, *wanted = (part.to(device, non_blocking=True) for part in batch)
        wanted = wanted[0] if wanted else joined(pictures_of(measured))
        with torch.autocast(device.type, torch.bfloat16):
            found = model(measured, mask)
        loss = F.l1_loss(found, wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.print_every == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=320, help="of a slice each way, in pixels")
    parser.add_argument("--coils", type=int, default=16)
    parser.add_argument("--networks", type=int, default=8)
    parser.add_argument("--deep", type=int, default=5, help="convolutions of a network")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8, help="slices, of each rank")
    parser.add_argument("--ahead", action="store_true", help="copy a batch while the one before is worked on")
    parser.add_argument("--workers", type=int, default=0, help="that read slices; 0: kept batches")
    parser.add_argument("--slices", type=int, default=16, help="that are stored")
    parser.add_argument("--gzip-rank", type=int, default=-1, help="whose slices are compressed")
    parser.add_argument("--pictures", choices=["loader", "device"], default="device", help="where wanted ones are made")
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
