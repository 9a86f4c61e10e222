"""Trains a U-Net with attention to take noise out of pictures, and keeps an average of its weights (EMA)."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class ChannelNorm(nn.LayerNorm):
    """Over the channels of each pixel."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Residual(nn.Module):
    def __init__(self, inputs, outputs, knowing):
        super().__init__()
        self.norm1, self.conv1 = ChannelNorm(inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = ChannelNorm(outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.modulate = nn.Linear(knowing, 2 * outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, known):
        scale, shift = self.modulate(known)[:, :, None, None].chunk(2, dim=1)
        inner = self.conv1(F.silu(self.norm1(x)))
        inner = torch.addcmul(shift, self.norm2(inner), 1 + scale)
        return self.skip(x) + self.conv2(F.silu(inner))


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads, self.norm = max(1, width // 64), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        pixels = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(pixels)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(seen).transpose(1, 2).unflatten(2, x.shape[2:])


class UNet(nn.Module):
    """Two blocks a level on the way down, three on the way up, attention at the bottom."""

    def __init__(self, base, levels, classes=100):
        super().__init__()
        widths, knowing = [base * 2**n for n in range(levels)], 4 * base
        self.label, self.time = nn.Embedding(classes, knowing), nn.Linear(64, knowing)
        self.know = nn.Sequential(nn.SiLU(), nn.Linear(knowing, knowing), nn.SiLU())
        self.first = nn.Conv2d(3, base, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        self.shrink, self.grow, skips, now = nn.ModuleList(), nn.ModuleList(), [base], base
        for n, width in enumerate(widths):
            self.down.append(nn.ModuleList((Residual(now, width, knowing), Residual(width, width, knowing))))
            skips += [width, width]
            now = width
            if n < levels - 1:
                self.shrink.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                skips.append(width)
        self.middle = nn.ModuleList((Residual(now, now, knowing), Residual(now, now, knowing)))
        self.attend = nn.ModuleList(Attention(now) for _ in range(3))
        for n, width in enumerate(reversed(widths)):
            blocks = nn.ModuleList()
            for _ in range(3):
                blocks.append(Residual(now + skips.pop(), width, knowing))
                now = width
            self.up.append(blocks)
            if n < levels - 1:
                self.grow.append(nn.Conv2d(width, width, 3, padding=1))
        self.norm, self.last = ChannelNorm(base), nn.Conv2d(base, 3, 3, padding=1)
        self.register_buffer("rates", torch.logspace(0, 3, 32))

    def forward(self, x, time, label):
        angles = time[:, None] * self.rates
        known = self.know(self.time(torch.cat((angles.sin(), angles.cos()), 1)) + self.label(label))
        x = self.first(x)
        skips = [x]
        for n, blocks in enumerate(self.down):
            for m, block in enumerate(blocks):
                x = block(x, known)
                if n == len(self.down) - 1:
                    x = self.attend[m](x)
                skips.append(x)
            if n < len(self.shrink):
                x = self.shrink[n](x)
                skips.append(x)
        x = self.middle[1](self.attend[2](self.middle[0](x, known)), known)
        for n, blocks in enumerate(self.up):
            for block in blocks:
                x = block(torch.cat((x, skips.pop()), 1), known)
            if n < len(self.grow):
                x = self.grow[n](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.last(F.silu(self.norm(x)))


class Average:
    """Of the weights, in one long tensor. Each rank has its own, or rank 0 sends its own to the others."""

    def __init__(self, model, shared):
        self.weights, self.shared = list(model.parameters()), shared
        self.flat = torch.empty(sum(p.numel() for p in self.weights), device=self.weights[0].device)
        self.parts, begin = [], 0
        for p in self.weights:
            self.parts.append(torch.as_strided(self.flat, p.shape, p.stride(), begin))
            begin += p.numel()
        torch._foreach_copy_(self.parts, [p.detach() for p in self.weights])

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.parts, self.weights, 1e-4)
        if self.shared:
            dist.broadcast(self.flat, src=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=int, default=192, help="channels of the first level")
    parser.add_argument("--levels", type=int, default=3)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--rank1-size", type=int, help="that of rank 1, where its pictures are larger or smaller")
    parser.add_argument("--batch", type=int, default=48, help="of each rank")
    parser.add_argument("--micro", type=int, help="pictures in a pass; all")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument(
        "--ema", choices=["own", "shared"], help="averages of the weights: of each rank, or that of rank 0"
    )
    opt = parser.parse_args()
    world, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
    if world > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(5)
    with device:
        net = UNet(opt.base, opt.levels)
    layout = torch.channels_last if opt.channels_last else torch.contiguous_format
    net = net.to(memory_format=layout)
    average = Average(net, opt.ema == "shared") if opt.ema else None
    trained = net
    if world > 1:
        trained = nn.parallel.DistributedDataParallel(
            net, device_ids=[local] if cuda else None, gradient_as_bucket_view=True
        )
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6, fused=True)
    torch.manual_seed(6 + rank)
    size, micro = opt.rank1_size if rank == 1 and opt.rank1_size else opt.size, opt.micro or opt.batch
    pool = torch.randint(0, 256, (8, opt.batch, 3, size, size), dtype=torch.uint8)
    labels = torch.randint(0, 100, (8, opt.batch))
    if cuda:
        pool, labels = pool.pin_memory(), labels.pin_memory()
    step = 0
    while True:
        pictures = pool[step % 8].to(device, non_blocking=True).float().div_(127.5).sub_(1)
        label = labels[step % 8].to(device, non_blocking=True)
        noise, time = torch.randn_like(pictures), torch.rand(len(pictures), device=device)
        level = time[:, None, None, None]
        noisy = ((1 - level).sqrt() * pictures + level.sqrt() * noise).contiguous(memory_format=layout)
        for inputs, times, kinds, truth in zip(*(t.split(micro) for t in (noisy, time, label, noise)), strict=True):
            with torch.autocast(device.type, torch.bfloat16):
                guess = trained(inputs, times, kinds)
            loss = F.mse_loss(guess.float(), truth)
            loss.backward()
        if micro < opt.batch:
            torch._foreach_mul_([p.grad for p in net.parameters()], micro / opt.batch)
        optimizer.step()
        optimizer.zero_grad()
        if average:
            average.update()
        step += 1
        if step % 100 == 0:
            print(step, f"{loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
