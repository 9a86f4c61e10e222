"""Tunes small adapters (LoRA) of all linear layers of a frozen language model; gradients are averaged by hand."""

import argparse
import math
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

WORDS = 32_000


class Adapted(nn.Module):
    """A frozen linear layer beside which two thin ones are trained."""

    def __init__(self, inputs, outputs, rank, kind):
        super().__init__()
        self.weight = nn.Parameter((torch.randn(outputs, inputs) * inputs**-0.5).to(kind), requires_grad=False)
        self.down = nn.Parameter(torch.randn(rank, inputs) * inputs**-0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x):
        return F.linear(x, self.weight) + F.linear(F.linear(x, self.down), self.up)


class Layer(nn.Module):
    def __init__(self, args, kind):
        super().__init__()
        width, inner = args.width, args.width * 8 // 3 // 64 * 64 or 64
        self.heads = max(1, width // 128)
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        for norm in (self.norm1, self.norm2):
            norm.requires_grad_(False)
        self.qkv, self.out = Adapted(width, 3 * width, args.rank, kind), Adapted(width, width, args.rank, kind)
        self.open, self.close = Adapted(width, 2 * inner, args.rank, kind), Adapted(inner, width, args.rank, kind)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        gate, value = self.open(self.norm2(x)).chunk(2, -1)
        return x + self.close(F.silu(gate) * value)


class Language(nn.Module):
    def __init__(self, args):
        super().__init__()
        kind = torch.bfloat16 if args.base == "bf16" else torch.float32
        self.words, self.places = nn.Embedding(WORDS, args.width), nn.Embedding(args.length, args.width)
        for table in (self.words, self.places):
            table.to(kind).requires_grad_(False)
        self.layers = nn.ModuleList(Layer(args, kind) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width, bias=False).requires_grad_(False)
        self.head = nn.Linear(args.width, WORDS, bias=False, dtype=kind).requires_grad_(False)
        self.recompute = args.recompute

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.head(self.norm(x))


def average(gradients, how):
    """Over the ranks: all gradients in one message, or each as soon as it is its turn."""
    ranks = dist.get_world_size()
    if how == "each":
        for gradient in gradients:
            dist.all_reduce(gradient)
            gradient.div_(ranks)
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat.div_(ranks)
    pieces = flat.split([gradient.numel() for gradient in gradients])
    torch._foreach_copy_(gradients, [p.view_as(g) for p, g in zip(pieces, gradients, strict=True)])


class Histograms:
    """Of each adapter's weights, as a dashboard draws them: of the last hundred steps."""

    def __init__(self):
        self.rows = []

    def add(self, step, named):
        for name, parameter in named:
            values = parameter.detach().float().cpu().numpy().ravel()
            counts, edges = np.histogram(values, bins=64)
            quartiles = np.percentile(values, (5, 25, 50, 75, 95))
            self.rows.append((step, name, counts.tolist(), edges.tolist(), quartiles.tolist()))
        del self.rows[: -100 * len(named)]


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(61)
    with device:
        model = Language(args)
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    parameters = [p for _, p in trained]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, weight_decay=0.0, fused=True)
    torch.manual_seed(62 + rank)
    texts = torch.randint(0, WORDS, (32, args.batch, args.length + 1))
    texts = texts.pin_memory() if device.type == "cuda" else texts
    histograms = Histograms()
    step = 0
    while True:
        tokens = texts[step % len(texts)].to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.base == "bf16"):
            found = model(tokens[:, :-1])
        loss = F.cross_entropy(found.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        if ranks > 1:
            average([p.grad for p in parameters], args.average)
        for group in optimizer.param_groups:
            group["lr"] = 1e-5 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / 10_000)))
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if args.histograms_every and rank == 0 and step % args.histograms_every == 0:
            histograms.add(step, trained)
        if step % 100 == 0:
            print("step", step, "loss", loss.item(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rank", type=int, default=16, help="of the adapters")
    parser.add_argument("--batch", type=int, default=12, help="of each GPU")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--base", choices=["bf16", "fp32"], default="bf16", help="precision of what is frozen")
    parser.add_argument("--recompute", action="store_true", help="each layer in the backward pass")
    parser.add_argument("--average", choices=["flat", "each"], default="flat", help="of gradients")
    parser.add_argument("--histograms-every", type=int, default=0, help="steps between those that rank 0 makes")
    main(parser.parse_args())
