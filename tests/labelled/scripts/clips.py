"""Trains a diffusion transformer of short films (rectified flow) on their latents, with captions that a frozen text
encoder reads; or tunes LoRA adapters of it. One GPU or DDP; the text encoder may be shared by the ranks (FSDP2)."""

import argparse
import contextlib
import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

CHANNELS, PATCH = 16, 2


class Linear(nn.Linear):
    """With a LoRA adapter if it has a rank; the matrix itself is frozen then."""

    def __init__(self, enter, leave, lora=0):
        super().__init__(enter, leave)
        self.lora = lora
        if lora:
            self.requires_grad_(False).to(torch.bfloat16)
            self.a = nn.Parameter(torch.randn(lora, enter) / math.sqrt(enter))
            self.b = nn.Parameter(torch.zeros(leave, lora))

    def forward(self, x):
        y = super().forward(x)
        return y + F.linear(F.linear(x, self.a), self.b) if self.lora else y


class Block(nn.Module):
    def __init__(self, width, text, lora):
        super().__init__()
        self.heads = width // 128
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(3))
        self.shifts = nn.Parameter(torch.randn(6, width) / math.sqrt(width), requires_grad=not lora)
        self.qkv, self.out = Linear(width, 3 * width, lora), Linear(width, width, lora)
        self.query, self.read = Linear(width, width, lora), Linear(text, 2 * width, lora)
        self.answer = Linear(width, width, lora)
        self.up, self.down = Linear(width, 4 * width, lora), Linear(4 * width, width, lora)

    def attend(self, q, k, v):
        q, k, v = (part.unflatten(-1, (self.heads, 128)).transpose(1, 2) for part in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def forward(self, x, text, when):
        shift, scale, gate, shift2, scale2, gate2 = (self.shifts + when).unbind(1)
        h = self.norms[0](x) * (1 + scale[:, None]) + shift[:, None]
        x = x + gate[:, None] * self.out(self.attend(*self.qkv(h).chunk(3, dim=-1)))
        x = x + self.answer(self.attend(self.query(self.norms[1](x)), *self.read(text).chunk(2, dim=-1)))
        h = self.norms[2](x) * (1 + scale2[:, None]) + shift2[:, None]
        return x + gate2[:, None] * self.down(F.gelu(self.up(h), approximate="tanh"))


class Films(nn.Module):
    def __init__(self, args):
        super().__init__()
        width, lora = args.width, args.lora
        tokens = args.frames * (args.size // PATCH) ** 2
        self.checkpoint = args.checkpoint
        self.enter = Linear(CHANNELS * PATCH**2, width, lora)
        self.places = nn.Parameter(0.02 * torch.randn(1, tokens, width), requires_grad=not lora)
        self.time = nn.Sequential(Linear(256, width, lora), nn.SiLU(), Linear(width, 6 * width, lora))
        self.blocks = nn.ModuleList(Block(width, args.text_width, lora) for _ in range(args.layers))
        self.norm, self.leave = nn.LayerNorm(width), Linear(width, CHANNELS * PATCH**2, lora)
        self.away = {}

    def to_host(self, count):
        """Keep the frozen weights of the last blocks in host memory, and bring them when they are needed."""
        for number in range(len(self.blocks) - count, len(self.blocks)):
            kept = {}
            for name, weight in self.blocks[number].named_parameters():
                if not weight.requires_grad:
                    kept[name] = weight.data.cpu().pin_memory() if weight.is_cuda else weight.data.clone()
                    weight.data = weight.data.new_empty(0)
            self.away[number] = kept

    def through(self, number, x, text, when):
        block, kept = self.blocks[number], self.away.get(number)
        if kept is None:
            return block(x, text, when)
        weights = {name: weight.to(x.device, non_blocking=True) for name, weight in kept.items()}
        return functional_call(block, weights, (x, text, when))

    def forward(self, noisy, time, text):
        angles = time[:, None] * 1000 * 10_000 ** (-torch.arange(128, device=time.device) / 128)
        when = self.time(torch.cat([angles.cos(), angles.sin()], dim=-1)).unflatten(-1, (6, -1))
        x = self.enter(noisy) + self.places
        for number in range(len(self.blocks)):
            if self.checkpoint:
                x = checkpoint(self.through, number, x, text, when, use_reentrant=False)
            else:
                x = self.through(number, x, text, when)
        return self.leave(self.norm(x))


class TextLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = width // 128
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, 128)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class TextEncoder(nn.Module):
    def __init__(self, width, layers, words):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.layers = nn.ModuleList(TextLayer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, words):
        x = self.table(words)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def text_encoder(args, device):
    torch.set_default_dtype(torch.bfloat16)
    with device:
        encoder = TextEncoder(args.text_width, args.text_layers, args.words)
    torch.set_default_dtype(torch.float32)
    encoder.requires_grad_(False).eval()
    if args.text == "shared":
        for layer in encoder.layers:
            fully_shard(layer)
        fully_shard(encoder)
    return encoder


def patches(latents):
    """(batch, channels, frames, height, width) as tokens."""
    x = latents.unflatten(-1, (-1, PATCH)).unflatten(-3, (-1, PATCH))
    return x.permute(0, 2, 3, 5, 1, 4, 6).flatten(4).flatten(1, 3)


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    torch.manual_seed(880)
    with device:
        model = Films(args)
    model.to_host(args.blocks_to_swap)
    encoder = None if args.text == "stored" else text_encoder(args, device)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.01, fused=True)
    wrapped = model
    if ranks > 1:
        wrapped = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)

    torch.manual_seed(881 + rank)
    films, captions = [], []
    for _ in range(3 * args.micro):
        films.append(torch.randn(args.batch, CHANNELS, args.frames, args.size, args.size, device=device))
        captions.append(torch.randint(args.words, (args.batch, args.text_length), device=device))
    shape = (args.batch, args.text_length, args.text_width)
    stored = None if encoder else [torch.randn(shape, device=device).bfloat16() for _ in films]

    for step in range(1, 1_000_000):
        total = 0.0
        for part in range(args.micro):
            place = (step * args.micro + part) % len(films)
            if encoder:
                with torch.no_grad():
                    text = encoder(captions[place])
            else:
                text = stored[place]
            clean = patches(films[place])
            noise, time = torch.randn_like(clean), torch.sigmoid(torch.randn(len(clean), device=device))
            noisy = torch.lerp(clean, noise, time[:, None, None])
            later = ranks > 1 and part < args.micro - 1
            with wrapped.no_sync() if later else contextlib.nullcontext():
                with torch.autocast(device.type, torch.bfloat16):
                    told = wrapped(noisy, time, text)
                loss = F.mse_loss(told.float(), noise - clean) / args.micro
                loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0 and step % args.print_every == 0:
            print(f"step {step}: loss {total.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=8, help="of latents")
    parser.add_argument("--size", type=int, default=32, help="of latents")
    parser.add_argument("--batch", type=int, default=6, help="films, of each rank")
    parser.add_argument("--micro", type=int, default=1, help="batches of a step")
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--checkpoint", action="store_true", help="compute blocks again in the backward pass")
    parser.add_argument("--lora", type=int, default=0, help="rank of adapters; 0: all is trained")
    parser.add_argument("--blocks-to-swap", type=int, default=0, help="whose frozen weights lie in host memory")
    parser.add_argument("--text", choices=["stored", "whole", "shared"], default="stored", help="the text encoder")
    parser.add_argument("--text-width", type=int, default=4096)
    parser.add_argument("--text-layers", type=int, default=12)
    parser.add_argument("--text-length", type=int, default=128, help="words of a caption")
    parser.add_argument("--words", type=int, default=32_128)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
