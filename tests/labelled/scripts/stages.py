"""Trains a language model with a large vocabulary whose layers are divided over two GPUs, one after the other: a batch
goes through the pipeline in parts, each of which is sent back as soon as its loss is known (1F1B). On one GPU the model
is whole."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = width // 128
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, 128)).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Begin(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.words, self.places = nn.Embedding(args.words, args.width), nn.Embedding(args.length, args.width)
        nn.init.normal_(self.words.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, words):
        return self.words(words) + self.places.weight


class End(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(args.width), nn.Linear(args.width, args.words, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, x):
        return self.head(self.norm(x))


def stage(args, first, last, device):
    """Layers from one to another, of which each draws its weights by its own number."""
    parts = []
    for number in range(first, last):
        torch.manual_seed(900 + number)
        with device:
            if number == 0:
                parts.append(Begin(args))
            parts.append(Layer(args.width))
            if number == args.layers - 1:
                parts.append(End(args))
    return nn.Sequential(*parts)


class Pipeline:
    def __init__(self, args, model, rank, ranks, device):
        self.args, self.model, self.rank, self.ranks, self.device = args, model, rank, ranks, device
        self.shape = (args.batch, args.length, args.width)

    def exchange(self, send=None, wanted=False):
        """With the other rank; each may send, or be sent, something."""
        other, got = 1 - self.rank, None
        operations = [] if send is None else [dist.P2POp(dist.isend, send, other)]
        if wanted:
            got = torch.empty(self.shape, dtype=torch.bfloat16, device=self.device)
            operations.append(dist.P2POp(dist.irecv, got, other))
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()
        return got

    def forward(self, x):
        with torch.autocast(self.device.type, torch.bfloat16):
            return self.model(x)

    def loss(self, x, targets):
        return F.cross_entropy(self.forward(x).flatten(0, 1).float(), targets.flatten()) / self.args.parts

    def first(self, inputs):
        """Of the first rank: one part is always ahead."""
        outputs = [self.forward(inputs[0]).bfloat16()]
        self.exchange(send=outputs[0].detach())
        for part in range(len(inputs)):
            ahead = None
            if part + 1 < len(inputs):
                outputs.append(self.forward(inputs[part + 1]).bfloat16())
                ahead = outputs[-1].detach()
            grad = self.exchange(send=ahead, wanted=True)
            outputs[part].backward(grad)
            outputs[part] = None

    def second(self, targets):
        x, total = self.exchange(wanted=True), 0.0
        for part, wanted in enumerate(targets):
            x.requires_grad_()
            loss = self.loss(x, wanted)
            loss.backward()
            total = total + loss.detach()
            x = self.exchange(send=x.grad, wanted=part + 1 < len(targets))
        return total

    def whole(self, inputs, targets):
        total = 0.0
        for x, wanted in zip(inputs, targets, strict=True):
            loss = self.loss(x, wanted)
            loss.backward()
            total = total + loss.detach()
        return total

    def step(self, tokens):
        inputs, targets = tokens[..., :-1], tokens[..., 1:]
        if self.ranks == 1:
            return self.whole(inputs, targets)
        return self.first(inputs) if self.rank == 0 else self.second(targets)


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    cut = args.layers if ranks == 1 else args.cut
    model = stage(args, *((0, cut) if rank == 0 else (cut, args.layers)), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    pipeline = Pipeline(args, model, rank, ranks, device)
    torch.manual_seed(890)
    shape = (args.parts, args.batch, args.length + 1)
    batches = [torch.randint(args.words, shape, device=device) for _ in range(3)]
    step = 0
    while True:
        loss = pipeline.step(batches[step % len(batches)])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if loss is not None and step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--cut", type=int, default=7, help="layers of the first rank")
    parser.add_argument("--words", type=int, default=262_144)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=1, help="texts of a part")
    parser.add_argument("--parts", type=int, default=8, help="of a batch, one after the other in the pipeline")
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
