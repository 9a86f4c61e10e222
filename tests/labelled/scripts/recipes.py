"""Writes recipes for what is in the kitchen: a language model as one writes it to learn how they work, whose heads are
put together from their own matrices. An average of its weights (EMA) is kept for tasting."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn


class Heads(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.together, self.size = args.heads_as == "joint", args.width // args.heads
        matrices = torch.empty(args.heads, 3, self.size, args.width)
        self.matrices = nn.Parameter(nn.init.normal_(matrices, std=0.02))
        self.out = nn.Linear(args.width, args.width, bias=False)

    def head(self, x, matrices):
        query, key, value = (F.linear(x, matrix).unsqueeze(1) for matrix in matrices.unbind(0))
        return F.scaled_dot_product_attention(query, key, value, is_causal=True).squeeze(1)

    def forward(self, x):
        if not self.together:
            return self.out(torch.cat([self.head(x, own) for own in self.matrices.unbind(0)], dim=2))
        made = F.linear(x, self.matrices.flatten(0, 2)).unflatten(2, (-1, 3, self.size))
        query, key, value = made.permute(3, 0, 2, 1, 4)
        x = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(x.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(args.width) for _ in range(2))
        self.heads = Heads(args)
        self.think = nn.Sequential(
            nn.Linear(args.width, 4 * args.width), nn.ReLU(), nn.Linear(4 * args.width, args.width)
        )

    def forward(self, x):
        x = x + self.heads(self.norms[0](x))
        return x + self.think(self.norms[1](x))


class Cook(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.words = nn.Embedding(args.vocabulary, args.width)
        self.places = nn.Embedding(args.length, args.width)
        self.blocks = nn.ModuleList([Block(args) for _ in range(args.layers)])
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, args.vocabulary, bias=False)

    def forward(self, words):
        x = self.words(words) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Average:
    """Weights, averaged over steps. They need no memory of the device if they lie on the host."""

    def __init__(self, model, where, keep):
        self.followed, self.keep, self.where = list(model.parameters()), keep, where
        self.own = [p.detach().clone() for p in self.followed]
        if where == "host":
            pin = self.own[0].is_cuda
            self.own = [own.cpu().pin_memory() if pin else own.cpu() for own in self.own]

    @torch.no_grad()
    def update(self):
        if self.where == "device":
            torch._foreach_lerp_(self.own, self.followed, 1 - self.keep)
            return
        for own, followed in zip(self.own, self.followed, strict=True):
            there = own.to(followed.device, non_blocking=True)
            own.copy_(there.lerp_(followed, 1 - self.keep), non_blocking=True)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2151)
    model = Cook(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, betas=(0.9, 0.95), fused=True)
    average = Average(model, args.average, 0.999) if args.average != "none" else None
    recipes = [torch.randint(args.vocabulary, (args.batch, args.length + 1), device=device) for _ in range(4)]
    for step, words in enumerate(itertools.cycle(recipes), 1):
        with torch.autocast(device.type, torch.bfloat16):
            scores = model(words[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if average:
            average.update()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=16_384)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--heads-as", choices=["each", "joint"], default="joint", help="one after the other, or as one")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--average", choices=["none", "host", "device"], default="none", help="where it lies")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
