"""Distils a language model: a small student learns from the next words and from what a large, frozen teacher thinks."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // 64)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        inner = self.first(x)
        parts = [f(inner).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value)]
        seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.second(x))))


class Language(nn.Module):
    def __init__(self, words, width, layers, length):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens):
        x = self.words(tokens) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def keep_on_host(teacher, device):
    """The weights of the teacher's layers stay in the host's memory; each comes when it is needed, and goes again."""

    def bring(layer, _):
        for p in layer.parameters():
            p.data = layer.at_home[p].to(device, non_blocking=True)

    def drop(layer, *_):
        for p in layer.parameters():
            p.data = layer.at_home[p]

    for layer in teacher.layers:
        layer.at_home = {p: p.data.cpu() for p in layer.parameters()}
        if device.type == "cuda":
            layer.at_home = {p: own.pin_memory() for p, own in layer.at_home.items()}
        drop(layer)
        layer.register_forward_pre_hook(bring)
        layer.register_forward_hook(drop)


@torch.no_grad()
def average(parameters, how):
    """Mean of the gradients over the ranks, in one message or in one for each."""
    world, grads = dist.get_world_size(), [p.grad for p in parameters]
    if how == "each":
        for grad in grads:
            dist.all_reduce(grad)
            grad /= world
        return
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    flat /= world
    pieces = flat.split([grad.numel() for grad in grads])
    torch._foreach_copy_(grads, [piece.view_as(grad) for piece, grad in zip(pieces, grads, strict=True)])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=16_000)
    parser.add_argument("--teacher-width", type=int, default=1536)
    parser.add_argument("--teacher-layers", type=int, default=8)
    parser.add_argument("--teacher-precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--teacher-on", choices=["device", "host"], default="device")
    parser.add_argument("--width", type=int, default=1024, help="of the student")
    parser.add_argument("--layers", type=int, default=8, help="of the student")
    parser.add_argument("--batch", type=int, default=32, help="of each rank")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--release", action="store_true", help="what the teacher's pass has left in the cache")
    parser.add_argument("--average", choices=["flat", "each"], default="flat")
    given = parser.parse_args()
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(31)
    with device:
        teacher = Language(given.words, given.teacher_width, given.teacher_layers, given.length)
        student = Language(given.words, given.width, given.layers, given.length)
    teacher = teacher.requires_grad_(False).eval()
    if given.teacher_precision == "bf16":
        teacher = teacher.bfloat16()
    if given.teacher_on == "host":
        keep_on_host(teacher, device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-5, fused=True)
    torch.manual_seed(32 + rank)
    texts = torch.randint(0, given.words, (32, given.batch, given.length + 1))
    if device.type == "cuda":
        texts = texts.pin_memory()
    step = 0
    while True:
        tokens = texts[step % len(texts)].to(device, non_blocking=True)
        inputs, truth = tokens[:, :-1], tokens[:, 1:].flatten()
        with torch.no_grad():
            thought = functional.softmax(teacher(inputs).flatten(0, 1).float() / 2, dim=-1)
        if given.release and device.type == "cuda":
            torch.cuda.empty_cache()
        with torch.autocast(device.type, torch.bfloat16):
            found = student(inputs).flatten(0, 1)
        found = found.float()
        loss = 0.5 * functional.cross_entropy(found, truth) + 2.0 * functional.cross_entropy(found / 2, thought)
        loss.backward()
        if ranks > 1:
            average(list(student.parameters()), given.average)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
