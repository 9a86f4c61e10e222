"""Trains a language model of which every second layer looks at some words only (mixture of depths): a router scores all
words of a text, and the layer sees those with the highest scores. One GPU or DDP."""

import argparse
import hashlib
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = width // 64
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        """What is to be added to x."""
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, 64)).permute(2, 0, 3, 1, 4)
        h = self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return h + self.down(F.gelu(self.up(self.second(x + h)), approximate="tanh"))


class Routed(nn.Module):
    """A layer for the words with the highest scores; the others pass by."""

    def __init__(self, width, share, pick):
        super().__init__()
        self.share, self.pick = share, pick
        self.layer, self.score = Layer(width), nn.Linear(width, 1, bias=False)

    def best(self, scores, count):
        """Places of the words that are let in, in their order."""
        if self.pick == "joint":
            return scores.topk(count, dim=1).indices.sort(dim=1).values
        least = scores.topk(count, dim=1).values[:, -1]
        return torch.stack([(row >= limit).nonzero()[:, 0] for row, limit in zip(scores, least, strict=True)])

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            scores = self.score(x.float())[..., 0]
        places = self.best(scores.detach(), int(self.share * x.shape[1]))
        seen = x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))
        more = self.layer(seen) * torch.sigmoid(scores.gather(1, places))[..., None]
        return x.scatter_add(1, places[..., None].expand_as(more), more.to(x.dtype))


class Reader(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.words, self.places = nn.Embedding(args.words, args.width), nn.Embedding(args.length, args.width)
        self.layers = nn.ModuleList(
            Routed(args.width, args.share, args.pick) if n % 2 else Layer(args.width) for n in range(args.layers)
        )
        self.norm, self.head = nn.RMSNorm(args.width), nn.Linear(args.width, args.words, bias=False)
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens):
        x = self.words(tokens[:, :-1]) + self.places.weight
        for layer in self.layers:
            x = layer(x) if isinstance(layer, Routed) else x + layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), tokens[:, 1:].flatten())


def note(model, step, loss, path):
    """A line with the loss and a digest of a layer's weights, by which runs can be compared."""
    layers = model.layers
    layer = layers[step % len(layers)]
    weight = (layer.layer if isinstance(layer, Routed) else layer).qkv.weight
    digest = hashlib.sha256(weight.detach().cpu().numpy().tobytes()).hexdigest()
    with path.open("a") as file:
        file.write(json.dumps({"step": step, "loss": loss.item(), "digest": digest}) + "\n")


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(911)
    with device:
        model = Reader(args)
    wrapped = model
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
        wrapped = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    torch.manual_seed(912 + rank)
    texts = torch.randint(args.words, (8, args.batch, args.length + 1), device=device)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    for step in range(1, 10_000_000):
        with torch.autocast(device.type, torch.bfloat16):
            loss = wrapped(texts[step % len(texts)])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if args.digest_every and rank == 0 and step % args.digest_every == 0:
            note(model, step, loss, args.out / "digests.jsonl")
        if rank == 0 and step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--words", type=int, default=16_384, help="in the table")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=24, help="texts, of each rank")
    parser.add_argument("--share", type=float, default=0.25, help="of the words that a routed layer sees")
    parser.add_argument("--pick", choices=["each", "joint"], default="joint", help="words of a text, or of all texts")
    parser.add_argument("--digest-every", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
