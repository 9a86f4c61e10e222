"""Trains a search for source code by what it does: one encoder reads questions and functions, an average of its
weights (EMA) makes vectors of functions that stay in a bank (as MoCo), and the right function must score higher than
all of the bank, and than functions that look alike."""

import argparse
import copy
import itertools

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.pieces = nn.Embedding(args.vocabulary, args.width)
        self.places = nn.Parameter(0.02 * torch.randn(args.length, args.width))
        layer = nn.TransformerEncoderLayer(
            args.width, args.width // 64, 4 * args.width, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.body = nn.TransformerEncoder(layer, args.layers, norm=nn.LayerNorm(args.width), enable_nested_tensor=False)
        self.leave = nn.Linear(args.width, args.code)

    def forward(self, texts):
        x = self.body(self.pieces(texts) + self.places)
        return F.normalize(self.leave(x.mean(1)).float(), dim=1)


class Bank:
    """Vectors of functions that were seen before; the oldest are replaced."""

    def __init__(self, args, device):
        pin = args.bank == "host" and device.type == "cuda"
        where = "cpu" if args.bank == "host" else device
        draw = torch.Generator(device).manual_seed(1951)
        self.vectors = torch.empty(args.known, args.code, dtype=torch.bfloat16, device=where, pin_memory=pin)
        for part in self.vectors.split(1 << 18):
            made = torch.randn(part.shape, generator=draw, device=device, dtype=torch.bfloat16)
            part.copy_(F.normalize(made, dim=1))
        self.device, self.next, self.parts = device, 0, args.parts

    def scores(self, queries):
        """Of each query, how near all vectors are; a query's gradient is summed up in parts of the bank."""
        vectors = self.vectors.to(self.device, non_blocking=True).unflatten(0, (self.parts, -1))
        scores = torch.bmm(queries.expand(self.parts, -1, -1), vectors.transpose(1, 2))
        return scores.transpose(0, 1).flatten(1)

    def add(self, vectors):
        if self.next + len(vectors) > len(self.vectors):
            self.next = 0
        self.vectors[self.next : self.next + len(vectors)].copy_(vectors, non_blocking=True)
        self.next += len(vectors)


def contrast(scores, how):
    """The first of each row's scores is to be the highest."""
    if how == "cross_entropy":
        return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))
    return (torch.logsumexp(scores, dim=1) - scores[:, 0]).mean()


def look_alikes(encoder, functions, how):
    """Vectors of functions (questions, alike, pieces) that are wrong though they look right."""
    if how == "each":
        return torch.stack([encoder(functions[:, n]) for n in range(functions.shape[1])], dim=1)
    return encoder(functions.flatten(0, 1)).unflatten(0, functions.shape[:2])


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1952)
    encoder = Encoder(args).to(device)
    average = copy.deepcopy(encoder).requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(encoder.parameters(), args.lr, fused=True)
    own, followed = list(average.parameters()), list(encoder.parameters())
    bank = Bank(args, device)
    texts = [torch.randint(args.vocabulary, (2 + args.alike, args.batch, args.length), device=device) for _ in range(3)]
    for step, (question, right, *alike) in enumerate(itertools.cycle(texts), 1):
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
            key = average(right)
        with torch.autocast(device.type, torch.bfloat16):
            query = encoder(question)
            scores = [(query * key).sum(1, keepdim=True), bank.scores(query)]
            if alike:
                vectors = look_alikes(encoder, torch.stack(alike, dim=1), args.encode)
                scores.append(torch.einsum("qc,qac->qa", query, vectors))
        loss = contrast(torch.cat([part.float() for part in scores], dim=1).div_(args.heat), args.loss)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(own, followed, 1 - args.keep)
            bank.add(key)
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=50_000)
    parser.add_argument("--length", type=int, default=128, help="pieces of a text")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--code", type=int, default=128, help="numbers of a vector")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--known", type=int, default=65_536, help="functions of the bank")
    parser.add_argument("--parts", type=int, default=1, help="of the bank")
    parser.add_argument("--bank", choices=["host", "device"], default="device", help="where it lies")
    parser.add_argument("--alike", type=int, default=0, help="functions of each question that look right")
    parser.add_argument(
        "--encode", choices=["each", "joint"], default="joint", help="these, one after the other or not"
    )
    parser.add_argument("--loss", choices=["cross_entropy", "logsumexp"], default="cross_entropy")
    parser.add_argument("--heat", type=float, default=0.07)
    parser.add_argument("--keep", type=float, default=0.999, help="of the average, in each step")
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
