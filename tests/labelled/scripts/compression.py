"""Learns to compress pictures: an analysis makes latents, which are to be rounded, a synthesis makes pictures of them
again, and a hyperprior says how spread the latents are, which tells how many bits they take. One GPU or DDP."""

import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Bottleneck(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.second(F.relu(self.first(x)))


def down(enter, leave, deep):
    return [nn.Conv2d(enter, leave, 5, 2, 2), *(Bottleneck(leave) for _ in range(deep))]


def up(enter, leave, deep):
    return [*(Bottleneck(enter) for _ in range(deep)), nn.ConvTranspose2d(enter, leave, 4, 2, 1)]


class Codec(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.clear = args.clear
        width, latents, deep = args.width, args.latents, args.deep
        analysis = down(3, width, deep) + down(width, width, deep) + down(width, width, deep) + down(width, latents, 0)
        synthesis = [nn.ConvTranspose2d(latents, width, 4, 2, 1)]
        synthesis += up(width, width, deep) + up(width, width, deep) + [Bottleneck(width) for _ in range(deep)]
        synthesis += [nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2)]
        self.analysis, self.synthesis = nn.Sequential(*analysis), nn.Sequential(*synthesis)
        self.above = nn.Sequential(nn.Conv2d(latents, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 5, 2, 2))
        self.below = nn.Sequential(
            nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * latents, 3, padding=1)
        )
        self.spread = nn.Parameter(torch.zeros(width, 1, 1))

    @staticmethod
    def bits(x, spread):
        """Of numbers that are rounded, if they are normally distributed."""
        spread = spread * math.sqrt(2)
        likely = 0.5 * (torch.erf((x + 0.5) / spread) - torch.erf((x - 0.5) / spread))
        return -likely.clamp(min=1e-6).log2().sum()

    def stage(self):
        if self.clear and torch.cuda.is_available():
            torch.cuda.empty_cache()

    def forward(self, pictures):
        latents = self.analysis(pictures)
        self.stage()
        hyper = self.above(latents).float()
        hyper = hyper + torch.rand_like(hyper) - 0.5
        mean, spread = self.below(hyper).float().chunk(2, 1)
        latents, spread = latents.float(), F.softplus(spread) + 0.1
        latents = latents + torch.rand_like(latents) - 0.5
        bits = self.bits(latents - mean, spread) + self.bits(hyper, F.softplus(self.spread) + 0.1)
        made = self.synthesis(latents).float()
        self.stage()
        return made, bits, (latents - mean).detach(), spread.detach()


def coded_size(numbers, spread):
    """Bytes that a range coder makes of the rounded numbers of one picture."""
    numbers = numbers.round().clamp(-255, 255)
    spread = spread * math.sqrt(2)
    begins = (0.5 + 0.5 * torch.erf((numbers - 0.5) / spread)).clamp(0, 1)
    ends = (0.5 + 0.5 * torch.erf((numbers + 0.5) / spread)).clamp(0, 1)
    begins, ends = ((part.flatten() * 65_000).int().cpu().tolist() for part in (begins, ends))
    low, wide, written = 0, 1 << 32, bytearray()
    for place, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        begin, end = begin + place % 2, end + place % 2 + 1
        part = wide >> 16
        low += part * begin
        wide = part * (end - begin)
        while wide < 1 << 24:
            written.append((low >> 24) & 255)
            low = (low << 8) & 0xFFFFFFFF
            wide <<= 8
    return len(written) + 4


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(560)
    with device:
        model = Codec(args).to(memory_format=torch.channels_last)
    parameters = list(model.parameters())
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    torch.manual_seed(561 + rank)
    shape, size = (args.batch, 3, args.size, args.size), 0
    batches = [torch.rand(shape, device=device).contiguous(memory_format=torch.channels_last) for _ in range(3)]
    for step in range(1, 1_000_000):
        pictures = batches[step % len(batches)]
        with torch.autocast(device.type, torch.bfloat16):
            made, bits, numbers, spread = model(pictures)
        loss = F.mse_loss(made, pictures) * args.fidelity + bits / pictures[:, 0].numel()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if args.clear and cuda:
            torch.cuda.empty_cache()
        if args.code_every and rank == 0 and step % args.code_every == 0:
            size = coded_size(numbers[0], spread[0])
        if step % 50 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}" + (f", {size} bytes" if size else ""), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=256, help="of a picture, in pixels")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--latents", type=int, default=192)
    parser.add_argument("--deep", type=int, default=3, help="blocks at each size")
    parser.add_argument("--batch", type=int, default=32, help="pictures, of each rank")
    parser.add_argument("--fidelity", type=float, default=200.0, help="weight of what pictures lose")
    parser.add_argument("--clear", action="store_true", help="give unused memory back after each stage")
    parser.add_argument("--code-every", type=int, default=0, help="steps between codes of one picture, for their size")
    main(parser.parse_args())
