"""Trains a language model of source code that also fills gaps: of some files the middle is cut out and put last. One
GPU, DDP, DDP whose optimizer is divided over the ranks (ZeRO), or matrices that are divided (tensor parallelism)."""

import argparse
import os
import re

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PREFIX, SUFFIX, MIDDLE, SPACE = 0, 1, 2, 3
PARTS = re.compile(r"[A-Za-z_]\w*|\d+|\s+|[^\w\s]")
STEMS = (
    *("load", "save", "parse", "node", "token", "index", "batch", "value", "count", "state"),
    *("tree", "path", "file", "line", "read", "write", "merge", "split", "key", "name"),
)


class Tokenizer:
    """Words are cut into the longest pieces that are known."""

    def __init__(self, words):
        pieces = [chr(c) for c in range(32, 127)] + ["\n", "    ", "        ", *STEMS]
        pieces += [f"{stem}_" for stem in STEMS] + [a + b for a in STEMS for b in STEMS]
        pieces += [f"{a}_{b}" for a in STEMS for b in STEMS]
        self.ids = {piece: n % (words - 4) + 4 for n, piece in enumerate(pieces)}
        self.longest = max(map(len, pieces))

    def __call__(self, text):
        found = []
        for part in PARTS.findall(text):
            start = 0
            while start < len(part):
                for end in range(min(len(part), start + self.longest), start, -1):
                    if part[start:end] in self.ids:
                        found.append(self.ids[part[start:end]])
                        start = end
                        break
                else:
                    found.append(SPACE)
                    start += 1
        return found


def made_up(draw, lines):
    """Source code of this many lines."""
    picks = torch.randint(len(STEMS), (lines, 6), generator=draw).tolist()
    text = []
    for n, line in enumerate(picks):
        a, b, c, d, e, f = (STEMS[pick] for pick in line)
        if n % 9 == 0:
            text.append(f"def {a}_{b}{n}({c}{d}, {e}):")
        else:
            text.append(f"    {'    ' * (n % 3)}{a}_{b} = {c}{d}.{e}_{f}({n}, {b}{a}[{n * 7}])")
    return "\n".join(text)


class Sources(Dataset):
    def __init__(self, args):
        self.args, self.tokenizer = args, Tokenizer(args.words)
        draw = torch.Generator().manual_seed(870)
        self.files = [made_up(draw, args.length // 8) for _ in range(args.files)]
        self.known = [self.tokenizer(text) for text in self.files] if args.tokens == "once" else None

    def __len__(self):
        return 1 << 20

    def __getitem__(self, n):
        length, which = self.args.length, n % len(self.files)
        tokens = self.known[which] if self.known else self.tokenizer(self.files[which])
        start = n * 131 % (len(tokens) // 2)
        tokens = tokens[start:] + tokens[:start]
        while len(tokens) <= length:
            tokens = tokens + tokens
        if n % 2:
            a, b = sorted((n * 613 % (length - 2), n * 419 % (length - 2)))
            tokens = [PREFIX, *tokens[:a], SUFFIX, *tokens[b : length - 2], MIDDLE, *tokens[a:b]]
        return torch.tensor(tokens[: length + 1])


class Enter(torch.autograd.Function):
    """Nothing on the way in; gradients are summed over the ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class Leave(torch.autograd.Function):
    """Summed over the ranks; nothing on the way back."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Layer(nn.Module):
    def __init__(self, width, inner, rank=0, parts=1):
        super().__init__()
        self.parts, self.heads = parts, width // 128 // parts
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v = (self.cut(width, width, 0, rank) for _ in range(3))
        self.o = self.cut(width, width, 1, rank)
        self.gate, self.up = self.cut(width, inner, 0, rank), self.cut(width, inner, 0, rank)
        self.down = self.cut(inner, width, 1, rank)

    def cut(self, enter, leave, dim, rank):
        """This rank's part of a matrix that all ranks draw alike."""
        whole = torch.empty(leave, enter)
        nn.init.normal_(whole, std=0.02)
        return nn.Parameter(whole.chunk(self.parts, dim)[rank].clone())

    def forward(self, x, turn):
        h = self.first(x)
        h = Enter.apply(h) if self.parts > 1 else h
        q, k, v = (F.linear(h, w).unflatten(-1, (self.heads, 128)).transpose(1, 2) for w in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(turned(q, turn), turned(k, turn), v, is_causal=True)
        h = F.linear(h.transpose(1, 2).flatten(2), self.o)
        x = x + (Leave.apply(h) if self.parts > 1 else h)
        h = self.second(x)
        h = Enter.apply(h) if self.parts > 1 else h
        h = F.linear(F.silu(F.linear(h, self.gate)) * F.linear(h, self.up), self.down)
        return x + (Leave.apply(h) if self.parts > 1 else h)


def turned(x, turn):
    a, b = x.chunk(2, dim=-1)
    cos, sin = turn
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


class Coder(nn.Module):
    def __init__(self, args, rank, parts):
        super().__init__()
        self.table = nn.Embedding(args.words, args.width)
        nn.init.normal_(self.table.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(args.width, args.inner, rank, parts) for _ in range(args.layers))
        self.norm, self.head = nn.RMSNorm(args.width), nn.Linear(args.width, args.words, bias=False)
        angles = torch.arange(args.length)[:, None] * 10_000 ** (-torch.arange(64) / 64)
        self.turn = angles.cos().bfloat16(), angles.sin().bfloat16()

    def forward(self, tokens):
        x = self.table(tokens[:, :-1])
        for layer in self.layers:
            x = layer(x, self.turn)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens[:, 1:].flatten())


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    tensor = ranks > 1 and args.parallel == "tensor"
    torch.manual_seed(871)
    with device:
        model = Coder(args, rank if tensor else 0, ranks if tensor else 1)
    wrapped = model
    if ranks > 1 and not tensor:
        wrapped = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    options = {"lr": args.lr, "betas": (0.9, 0.95), "weight_decay": 0.1, "fused": True}
    if ranks > 1 and args.parallel == "zero":
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=args.bucket_view, **options
        )
    else:
        optimizer = torch.optim.AdamW(model.parameters(), **options)

    dataset = Sources(args)
    shares, batch = (1, args.batch * ranks) if tensor else (ranks, args.batch)
    sampler = DistributedSampler(dataset, shares, rank if shares > 1 else 0, shuffle=True, seed=872)
    loader = DataLoader(
        dataset, batch, sampler=sampler, num_workers=args.workers, pin_memory=cuda, drop_last=True, prefetch_factor=4
    )
    for step, tokens in enumerate(loader, 1):
        tokens = tokens.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = wrapped(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.print_every == 0:
            mean = loss.detach().clone()
            if ranks > 1:
                dist.all_reduce(mean)
                mean /= ranks
            if rank == 0:
                print(f"step {step}: loss {mean.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--inner", type=int, default=5632, help="width within a layer")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--words", type=int, default=32_768, help="in the table")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8, help="files, of each rank")
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--tokens", choices=["each", "once"], default="once", help="when files are cut into words")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--parallel", choices=["ddp", "zero", "tensor"], default="ddp")
    parser.add_argument("--bucket-view", action="store_true", help="parameters of a rank lie in one buffer (ZeRO)")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
