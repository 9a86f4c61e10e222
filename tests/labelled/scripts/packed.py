"""Trains a language model on chats that are packed into rows one after the other; each word also has a role (who said
it) and a language, and is predicted only if it is not the first of its chat."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORDS, HEAD, ROLES, LANGUAGES = 32_000, 128, 4, 8


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // HEAD)
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.mix(self.first(x)).chunk(3, -1)
        )
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Speaker(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.tables, self.kind = args.tables, torch.float32 if args.head == "fp32" else torch.bfloat16
        self.embed, self.places = nn.Embedding(WORDS, args.width), nn.Embedding(args.length, args.width)
        self.roles = nn.Parameter(torch.randn(ROLES, args.width) * 0.02)
        self.languages = nn.Parameter(torch.randn(LANGUAGES, args.width) * 0.02)
        self.layers = nn.Sequential(*(Layer(args.width) for _ in range(args.layers)))
        self.norm, self.head = nn.RMSNorm(args.width), nn.Linear(args.width, WORDS, bias=False)

    def look_up(self, table, kinds):
        if self.tables == "index":
            return table[kinds]
        return (kinds[..., None] == torch.arange(len(table), device=kinds.device)).to(table.dtype) @ table

    def forward(self, words, places, roles, languages):
        x = self.embed(words) + self.places(places)
        x = x + self.look_up(self.roles, roles) + self.look_up(self.languages, languages)
        x = self.norm(self.layers(x))[:, :-1].flatten(0, 1)
        logits = F.linear(x.to(self.kind), self.head.weight.to(self.kind))
        right = words[:, 1:].masked_fill(places[:, 1:] == 0, -100)
        return F.cross_entropy(logits.float(), right.flatten())


def rows(args, device):
    """Words, their places in their chats, their roles and languages; a chat follows the other until the row is full."""
    shape = (args.batch, args.length)
    words = torch.randint(0, WORDS, shape, device=device)
    begins = torch.rand(shape, device=device) < 1 / args.chat
    begins[:, 0] = True
    numbers = torch.arange(args.length, device=device).expand(shape)
    places = numbers - torch.where(begins, numbers, 0).cummax(1).values
    # most is said by the model and in one language
    roles = (torch.rand(shape, device=device) ** 12 * ROLES).long()
    languages = (torch.rand(shape, device=device) ** 24 * LANGUAGES).long()
    return words, places, roles, languages


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(420)
    with device:
        model = Speaker(args).to(torch.bfloat16)
    parameters = list(model.parameters())
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    torch.manual_seed(421 + rank)
    batches = [rows(args, device) for _ in range(4)]
    for step in range(1, 1_000_000):
        loss = model(*batches[step % 4])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8, help="rows, of each rank")
    parser.add_argument("--length", type=int, default=2048, help="of a row, in words")
    parser.add_argument("--chat", type=int, default=400, help="mean length, in words")
    parser.add_argument("--head", choices=["bf16", "fp32"], default="bf16", help="what words are predicted in")
    parser.add_argument("--tables", choices=["index", "product"], default="product", help="how roles are looked up")
    main(parser.parse_args())
