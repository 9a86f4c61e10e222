"""Trains a small GPT on random tokens in a plain loop, on one GPU or with DDP."""

import argparse
import contextlib
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--width", type=int, default=1024)
parser.add_argument("--heads", type=int, default=16)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--length", type=int, default=1024)
parser.add_argument("--rank1-batch", type=int, help="that of rank 1, where it is another one")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--bucket-mb", type=float, default=25)
parser.add_argument(
    "--clip", choices=["norm", "each", "none"], default="norm", help="each: by each gradient's own norm"
)
parser.add_argument("--save-every", type=int, default=0, help="rank 0 writes the weights after so many steps")
parser.add_argument("--graph", action="store_true", help="capture the step as a CUDA graph")
parser.add_argument("--out", default="out")
parser.add_argument("--print-every", type=int, default=50)
given = parser.parse_args()

VOCABULARY = 32_000
ranks, rank, local = (int(os.environ.get(name, default)) for name, default in
                      (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))  # fmt: skip
device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
if ranks > 1:
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
batch = given.rank1_batch if rank == 1 and given.rank1_batch else given.batch


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(given.width), nn.LayerNorm(given.width)
        self.query_key_value = nn.Linear(given.width, 3 * given.width)
        self.out = nn.Linear(given.width, given.width)
        self.up, self.down = nn.Linear(given.width, 4 * given.width), nn.Linear(4 * given.width, given.width)

    def forward(self, x):
        parts = self.query_key_value(self.before(x)).view(*x.shape[:2], 3, given.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, given.width), nn.Embedding(given.length, given.width)
        self.blocks = nn.ModuleList(Block() for _ in range(given.layers))
        self.last, self.head = nn.LayerNorm(given.width), nn.Linear(given.width, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


torch.manual_seed(1)
model = Gpt().to(device)
if ranks > 1:
    own = [local] if device.type == "cuda" else None
    model = DistributedDataParallel(model, device_ids=own, bucket_cap_mb=given.bucket_mb, gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, capturable=given.graph)
pool = torch.randint(0, VOCABULARY, (64, batch, given.length + 1)).pin_memory() if device.type == "cuda" else (
    torch.randint(0, VOCABULARY, (64, batch, given.length + 1)))  # fmt: skip


def forward_and_backward(tokens):
    with torch.autocast(device.type, torch.bfloat16):
        found = model(tokens[:, :-1])
        loss = functional.cross_entropy(found.flatten(0, 1), tokens[:, 1:].flatten()) / given.accumulate
    loss.backward()
    return loss


def clip():
    if given.clip == "norm":
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    elif given.clip == "each":
        for parameter in model.parameters():
            norm = parameter.grad.norm().item()
            if norm > 1.0:
                parameter.grad.mul_(1.0 / norm)


def train_step(tokens):
    for _ in range(given.accumulate):
        loss = forward_and_backward(tokens)
    clip()
    optimizer.step()
    optimizer.zero_grad(set_to_none=not given.graph)
    return loss


class Graphed:
    """The step, captured once; the optimizer's own step stays outside, as its callers see it."""

    def __init__(self):
        self.tokens = pool[0].to(device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                forward_and_backward(self.tokens)
                optimizer.zero_grad(set_to_none=True)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = forward_and_backward(self.tokens)
            clip()

    def __call__(self, tokens):
        self.tokens.copy_(tokens)
        self.graph.replay()
        optimizer.step()
        return self.loss


Path(given.out).mkdir(parents=True, exist_ok=True)
run = Graphed() if given.graph else train_step
step = 0
while True:
    loss = run(pool[step % len(pool)].to(device, non_blocking=True))
    step += 1
    if given.save_every and step % given.save_every == 0 and rank == 0:
        plain = model.module if ranks > 1 else model
        with contextlib.suppress(OSError):
            torch.save(plain.state_dict(), Path(given.out, "weights.pt"))
    if step % given.print_every == 0:
        print(step, loss.item())
