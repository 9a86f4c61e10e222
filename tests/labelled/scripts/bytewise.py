"""Trains a language model of bytes, without words (as in MegaByte): a large transformer reads patches of eight bytes, a
small one writes the bytes of each patch. One GPU; DDP, or ranks that average their weights."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PATCH = 8


def feed_forward(device, numbers):
    """A function that keeps the state before the activation only (squared ReLU), and works in this kind of numbers."""

    class FeedForward(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device, cast_inputs=numbers)
        def forward(ctx, x, up, down):
            h = x @ up.T
            ctx.save_for_backward(x, up, down, h)
            return F.relu(h).square() @ down.T

        @staticmethod
        @torch.amp.custom_bwd(device_type=device)
        def backward(ctx, grad):
            x, up, down, h = ctx.saved_tensors
            positive = F.relu(h)
            grad = grad.to(h.dtype)
            back = (grad @ down) * (2 * positive)
            rows = grad.flatten(0, -2)
            return back @ up, back.flatten(0, -2).T @ x.flatten(0, -2), rows.T @ positive.square().flatten(0, -2)

    return FeedForward.apply


class Layer(nn.Module):
    def __init__(self, width, function):
        super().__init__()
        self.heads, self.function = width // 64, function
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up = nn.Parameter(torch.randn(4 * width, width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(width, 4 * width) * 0.5 * width**-0.5)

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, 64)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.function(self.second(x), self.up, self.down)


class Bytes(nn.Module):
    def __init__(self, args, device):
        super().__init__()
        patches, inner = args.length // PATCH, args.width // PATCH
        small = torch.float32 if args.small_in == "fp32" else torch.bfloat16
        self.table = nn.Embedding(257, inner)
        self.places = nn.Parameter(0.02 * torch.randn(patches, args.width))
        large_function, small_function = feed_forward(device, torch.bfloat16), feed_forward(device, small)
        self.large = nn.ModuleList(Layer(args.width, large_function) for _ in range(args.layers))
        self.across = nn.Linear(inner, args.small_width)
        self.small_table = nn.Embedding(257, args.small_width)
        self.small = nn.ModuleList(Layer(args.small_width, small_function) for _ in range(args.small_layers))
        self.norm, self.head = nn.LayerNorm(args.small_width), nn.Linear(args.small_width, 257)

    def forward(self, text):
        """Bytes as (text, patch, byte)."""
        begin = torch.full_like(text[:, :1], 256)
        x = self.table(torch.cat([begin, text[:, :-1]], dim=1)).flatten(2) + self.places
        for layer in self.large:
            x = layer(x)
        context = self.across(x.unflatten(-1, (PATCH, -1)))
        before = torch.cat([torch.full_like(text[..., :1], 256), text[..., :-1]], dim=-1)
        h = (context + self.small_table(before)).flatten(0, 1)
        for layer in self.small:
            h = layer(h)
        return F.cross_entropy(self.head(self.norm(h)).float().flatten(0, 1), text.flatten())


@torch.no_grad()
def average_weights(model, ranks):
    for weight in model.parameters():
        dist.all_reduce(weight)
        weight /= ranks


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(921)
    with device:
        model = Bytes(args, device.type)
    wrapped = model
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
        if args.average == "gradients":
            wrapped = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, fused=True)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), fused=True)
    torch.manual_seed(922 + rank)
    texts = torch.randint(256, (8, args.batch, args.length // PATCH, PATCH), device=device)
    for step in range(1, 10_000_000):
        with torch.autocast(device.type, torch.bfloat16):
            loss = wrapped(texts[step % len(texts)])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if ranks > 1 and args.average == "weights":
            average_weights(model, ranks)
        if rank == 0 and step % args.print_every == 0:
            print(f"step {step}: {loss.item() / 0.6931:.4f} bits per byte", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048, help="of the large transformer")
    parser.add_argument("--layers", type=int, default=12, help="of the large transformer")
    parser.add_argument("--small-width", type=int, default=512)
    parser.add_argument("--small-layers", type=int, default=4)
    parser.add_argument("--small-in", choices=["fp32", "bf16"], default="bf16", help="numbers of its feed-forward part")
    parser.add_argument("--length", type=int, default=8192, help="bytes")
    parser.add_argument("--batch", type=int, default=8, help="texts, of each rank")
    parser.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
    parser.add_argument("--average", choices=["weights", "gradients"], default="gradients")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
