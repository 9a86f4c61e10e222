"""Trains a diffusion transformer (DiT) on latents of pictures with class labels, on one GPU or several."""

from __future__ import annotations

import argparse
import copy
import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.utils.checkpoint import checkpoint

CLASSES, CHANNELS, PATCH = 1000, 4, 2


class PlainNorm(nn.Module):
    """LayerNorm without weights, as the paper writes it."""

    def forward(self, x):
        x = x.float()
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-6)


class PlainGelu(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


class Block(nn.Module):
    def __init__(self, width, heads, plain, remat):
        super().__init__()
        self.heads, self.plain, self.remat = heads, plain, remat
        self.norm1, self.norm2 = (PlainNorm() if plain else nn.LayerNorm(width, 1e-6, False) for _ in range(2))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        gelu = PlainGelu() if plain else nn.GELU(approximate="tanh")
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), gelu, nn.Linear(4 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def attend(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.plain:
            weights = torch.softmax((q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5, dim=-1)
            seen = weights.to(v.dtype) @ v
        else:
            seen = F.scaled_dot_product_attention(q, k, v)
        return self.proj(seen.transpose(1, 2).flatten(2))

    def body(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(c)[:, None].chunk(6, dim=-1)
        x = x + gate1 * self.attend(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)

    def forward(self, x, c):
        return checkpoint(self.body, x, c, use_reentrant=False) if self.remat else self.body(x, c)


class DiT(nn.Module):
    def __init__(self, args):
        super().__init__()
        width = args.width
        self.embed = nn.Conv2d(CHANNELS, width, PATCH, stride=PATCH)
        self.places = nn.Parameter(torch.randn(1, (args.size // PATCH) ** 2, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(CLASSES, width)
        heads = max(1, width // 64)
        self.blocks = nn.ModuleList(Block(width, heads, args.plain, args.remat) for _ in range(args.layers))
        self.norm, self.head = nn.LayerNorm(width, 1e-6), nn.Linear(width, CHANNELS * PATCH**2)
        self.register_buffer("rates", torch.exp(-math.log(10_000) * torch.arange(128) / 128))

    def forward(self, noisy, time, label):
        angles = time[:, None] * 1000 * self.rates
        c = self.time(torch.cat((angles.cos(), angles.sin()), 1)) + self.label(label)
        x = self.embed(noisy).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x, c)
        x = self.head(self.norm(x)).transpose(1, 2)
        return F.pixel_shuffle(x.unflatten(2, (noisy.shape[2] // PATCH, -1)), PATCH)


def watch_numbers(model, mode, device):
    """Look for infinite and undefined numbers in what each layer makes: at once, or in a sum that is read later."""
    total = torch.zeros((), device=device)

    def look(module, _, out):
        found = out.detach().sum()
        if mode == "late":
            total.add_(found)
        elif not math.isfinite(found.item()):
            raise FloatingPointError(f"{type(module).__name__} made an infinite or undefined number")

    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.LayerNorm, nn.Conv2d, nn.GELU, nn.SiLU, Block)):
            module.register_forward_hook(look)
    return total


def average(model, how):
    """Mean of the gradients over the ranks: a message for each of them, or one for all."""
    grads = [p.grad for p in model.parameters()]
    if how == "each":
        for grad in grads:
            dist.all_reduce(grad)
            grad.div_(dist.get_world_size())
        return
    flat = _flatten_dense_tensors(grads)
    dist.all_reduce(flat)
    flat.div_(dist.get_world_size())
    torch._foreach_copy_(grads, list(_unflatten_dense_tensors(flat, grads)))


@torch.no_grad()
def update_averages(emas, model, how):
    """Averages of the weights with several memories, to choose from afterwards."""
    weights = list(model.parameters())
    for number, ema in enumerate(emas):
        decay = 1 - 10.0 ** -(number + 2)
        if how == "foreach":
            torch._foreach_mul_(ema, decay)
            torch._foreach_add_(ema, weights, alpha=1 - decay)
        else:
            for mean, weight in zip(ema, weights, strict=True):
                mean.mul_(decay).add_(weight, alpha=1 - decay)


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(args.seed)
    with device:
        model = DiT(args)
    model.train()
    emas = [[p.detach().clone() for p in model.parameters()] for _ in range(args.emas)]
    total = watch_numbers(model, args.look, device) if args.look else None
    trained = model
    if ranks > 1 and args.average == "ddp":
        trained = nn.parallel.DistributedDataParallel(
            model, device_ids=[local] if device.type == "cuda" else None, gradient_as_bucket_view=True
        )
    # On the host there is room for the optimizer's state beside that of other jobs on this card.
    held = copy.deepcopy(model).cpu() if args.optimizer_on == "host" else model
    optimizer = torch.optim.AdamW(held.parameters(), lr=1e-5, fused=True)
    torch.manual_seed(args.seed + 1 + rank)
    latents = torch.randn(16, args.batch, CHANNELS, args.size, args.size)
    labels = torch.randint(0, CLASSES, (16, args.batch))
    if device.type == "cuda":
        latents, labels = latents.pin_memory(), labels.pin_memory()
    for step in range(1_000_000):
        clean = latents[step % 16].to(device, non_blocking=True)
        label = labels[step % 16].to(device, non_blocking=True)
        noise, time = torch.randn_like(clean), torch.rand(len(clean), device=device)
        level = time.view(-1, 1, 1, 1)
        with torch.autocast(device.type, torch.bfloat16):
            guess = trained((1 - level) * clean + level * noise, time, label)
        loss = F.mse_loss(guess.float(), noise - clean)
        loss.backward()
        if ranks > 1 and args.average != "ddp":
            average(model, args.average)
        if held is not model:
            for own, weight in zip(held.parameters(), model.parameters(), strict=True):
                own.grad, weight.grad = weight.grad.cpu(), None
        optimizer.step()
        optimizer.zero_grad()
        if held is not model:
            with torch.no_grad():
                for own, weight in zip(held.parameters(), model.parameters(), strict=True):
                    weight.copy_(own)
        update_averages(emas, model, args.ema_update)
        if step % 100 == 99:
            print(f"{step + 1}: loss {loss.item():.4f}")
            if total is not None and not math.isfinite(total.item()):
                raise FloatingPointError("a layer made an infinite or undefined number")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--size", type=int, default=32, help="of the latents")
    parser.add_argument("--batch", type=int, default=64, help="of each rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="norms, activations and attention as formulas")
    parser.add_argument("--remat", action="store_true", help="compute blocks again in the backward pass")
    parser.add_argument("--look", choices=["each", "late"], help="for infinite and undefined numbers")
    parser.add_argument("--emas", type=int, default=0, help="averages of the weights to keep")
    parser.add_argument("--ema-update", choices=["loop", "foreach"], default="foreach")
    parser.add_argument("--optimizer-on", choices=["device", "host"], default="device")
    parser.add_argument("--average", choices=["ddp", "flat", "each"], default="ddp", help="of gradients")
    main(parser.parse_args())
