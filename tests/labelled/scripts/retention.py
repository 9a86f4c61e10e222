"""Trains a language model that retains instead of attending (RetNet): what was said fades at a pace of each head. Words
look at each other within a chunk, and through a state at what came before it."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

WORDS, HEAD = 32_000, 128


class Retention(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args, self.heads = args, max(1, args.width // HEAD)
        size = args.width // self.heads
        self.mix, self.out = (
            nn.Linear(args.width, 4 * args.width, bias=False),
            nn.Linear(args.width, args.width, bias=False),
        )
        self.norm = nn.RMSNorm(size)
        fade = torch.log1p(-(2.0 ** (-5 - torch.arange(self.heads))))[:, None, None]
        places, chunks = torch.arange(args.chunk), torch.arange(args.length // args.chunk)
        apart = places[:, None] - places
        self.register_buffer("within", torch.where(apart >= 0, (fade * apart).exp(), 0.0)[:, None])
        self.register_buffer("since", (fade * (places[:, None] + 1)).exp()[:, None])
        self.register_buffer("until", (fade * (args.chunk - 1 - places[:, None])).exp()[:, None])
        apart = chunks[:, None] - 1 - chunks
        self.register_buffer("between", torch.where(apart >= 0, (fade * args.chunk * apart).exp(), 0.0))
        self.register_buffer("over", (fade * args.chunk).exp())

    def states(self, said):
        """What each chunk remembers of those before it."""
        if self.args.states == "matrix":
            return (self.between.to(said.dtype) @ said.flatten(3)).view_as(said)
        state, before = torch.zeros_like(said[:, :, 0]), []
        for own in said.unbind(2):
            before.append(state)
            state = torch.addcmul(own, state, self.over.to(own.dtype))
        return torch.stack(before, 2)

    def forward(self, x):
        query, key, value, gate = self.mix(x).chunk(4, -1)
        query, key, value = (
            part.unflatten(1, (-1, self.args.chunk)).unflatten(3, (self.heads, -1)).permute(0, 3, 1, 2, 4)
            for part in (query, key, value)
        )
        key = key * key.shape[-1] ** -0.5
        kind = query.dtype
        found = (query @ key.transpose(-1, -2) * self.within.to(kind)) @ value
        states = self.states((key * self.until.to(kind)).transpose(-1, -2) @ value)
        found = found + (query * self.since.to(kind)) @ states
        found = self.norm(found).permute(0, 2, 3, 1, 4).flatten(3).flatten(1, 2)
        return self.out(found * F.silu(gate))


class Layer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.first, self.second = nn.RMSNorm(args.width), nn.RMSNorm(args.width)
        self.retention = Retention(args)
        inner = args.width * 8 // 3 // 64 * 64 or 64
        self.up, self.down = nn.Linear(args.width, 2 * inner, bias=False), nn.Linear(inner, args.width, bias=False)

    def forward(self, x):
        x = x + self.retention(self.first(x))
        gate, up = self.up(self.second(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Speaker(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(WORDS, args.width)
        self.layers = nn.Sequential(*(Layer(args) for _ in range(args.layers)))
        self.norm, self.head = nn.RMSNorm(args.width), nn.Linear(args.width, WORDS, bias=False)

    def forward(self, words):
        logits = self.head(self.norm(self.layers(self.embed(words))))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), words[:, 1:].flatten())


def main(args):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(320)
    with device:
        model = Speaker(args).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    texts = torch.randint(0, WORDS, (8, args.batch, args.length))
    if cuda:
        texts = texts.pin_memory()
    for step in range(1, 1_000_000):
        loss = model(texts[step % 8].to(device, non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if args.release:
            torch.cuda.empty_cache()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--states", choices=["matrix", "loop"], default="matrix", help="how chunks get theirs")
    parser.add_argument("--release", action="store_true", help="memory that is free, after each step")
    main(parser.parse_args())
