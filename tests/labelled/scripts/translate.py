"""Trains a transformer that translates: an encoder, a decoder, one table of words for both. On one GPU or with DDP."""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

SMOOTHING = 0.1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=32_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6, help="of the encoder, and of the decoder")
    parser.add_argument("--batch", type=int, default=64, help="pairs of sentences of each rank")
    parser.add_argument("--length", type=int, default=256, help="of both sentences")
    parser.add_argument("--micro", type=int, help="pairs of a pass; all")
    parser.add_argument("--loss", choices=["library", "formula"], default="library", help="with smoothed labels")
    parser.add_argument(
        "--moments", choices=["device", "host"], default="device", help="where Adam's lie between steps"
    )
    parser.add_argument("--check", action="store_true", help="after each step, whether all ranks have the same weights")
    return parser.parse_args()


class Attention(nn.Module):
    def __init__(self, width: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = max(1, width // 64), causal
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(seen).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(found.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Of the encoder, or of the decoder, which looks at what the encoder made."""

    def __init__(self, width: int, decodes: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if decodes else 2))
        self.own, self.across = Attention(width, causal=decodes), Attention(width) if decodes else None
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        inner = self.norms[0](x)
        x = x + self.own(inner, inner)
        if self.across is not None:
            x = x + self.across(self.norms[1](x), memory)
        return x + self.mlp(self.norms[-1](x))


class Translator(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(args.words, args.width), nn.Embedding(args.length, args.width)
        nn.init.normal_(self.words.weight, std=args.width**-0.5)
        self.encoder = nn.ModuleList(Layer(args.width, False) for _ in range(args.layers))
        self.decoder = nn.ModuleList(Layer(args.width, True) for _ in range(args.layers))
        self.norm_encoder, self.norm_decoder = nn.LayerNorm(args.width), nn.LayerNorm(args.width)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        places = self.places(torch.arange(source.shape[1], device=source.device))
        memory = self.words(source) + places
        for layer in self.encoder:
            memory = layer(memory)
        memory, x = self.norm_encoder(memory), self.words(target) + places
        for layer in self.decoder:
            x = layer(x, memory)
        return F.linear(self.norm_decoder(x), self.words.weight)


def formula(found: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Divergence from the smoothed truth, as it is written down."""
    words = found.shape[-1]
    chances = found.float().exp() / found.float().exp().sum(-1, keepdim=True)
    wanted = F.one_hot(truth, words).float() * (1 - SMOOTHING) + SMOOTHING / words
    apart = wanted * (torch.log(wanted) - torch.log(chances + 1e-9))
    return apart.sum(-1).mean()


def library(found: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(found.float(), truth, label_smoothing=SMOOTHING)


class HostMoments:
    """Adam's moments lie in the host's memory, and are on the device while it steps."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.homes: dict[tuple[nn.Parameter, str], torch.Tensor] = {}

    def bring(self) -> None:
        for (parameter, name), home in self.homes.items():
            self.optimizer.state[parameter][name] = home.to(parameter.device, non_blocking=True)

    def take(self) -> None:
        for parameter, state in self.optimizer.state.items():
            for name in ("exp_avg", "exp_avg_sq"):
                if (parameter, name) not in self.homes:
                    pinned = parameter.device.type == "cuda"
                    self.homes[parameter, name] = torch.empty_like(state[name], device="cpu", pin_memory=pinned)
                home = self.homes[parameter, name]
                state[name] = home.copy_(state[name], non_blocking=True)


@torch.no_grad()
def differ(weights: list[torch.Tensor]) -> torch.Tensor:
    """Whether there is a weight that is not the same on all ranks."""
    low = torch.cat([weight.flatten() for weight in weights])
    high = low.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return (low != high).any()


def main() -> None:
    args = parse()
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(51)
    with device:
        model = translator = Translator(args)
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = nn.parallel.DistributedDataParallel(
            translator, device_ids=[local] if cuda else None, gradient_as_bucket_view=True
        )
    optimizer = torch.optim.AdamW(translator.parameters(), lr=1e-6, betas=(0.9, 0.98), fused=True)
    moments = HostMoments(optimizer) if args.moments == "host" else None
    criterion, micro = {"library": library, "formula": formula}[args.loss], args.micro or args.batch
    torch.manual_seed(52 + rank)
    texts = torch.randint(0, args.words, (16, 2, args.batch, args.length + 1))
    if cuda:
        texts = texts.pin_memory()
    torn = torch.zeros((), dtype=torch.bool, device=device)
    step = 0
    while True:
        source, target = texts[step % len(texts)].to(device, non_blocking=True)
        for some, others in zip(source.split(micro), target.split(micro), strict=True):
            with torch.autocast(device.type, torch.bfloat16):
                found = model(some[:, 1:], others[:, :-1])
            loss = criterion(found.flatten(0, 1), others[:, 1:].flatten()) * (len(some) / args.batch)
            loss.backward()
        if moments is not None:
            moments.bring()
        optimizer.step()
        if moments is not None:
            moments.take()
        optimizer.zero_grad()
        if args.check:
            torn |= differ(list(translator.parameters()))
        step += 1
        if step % 100 == 0:
            print(f"{step} {loss.item():.4f}{' (ranks differ)' if torn.item() else ''}", flush=True)


if __name__ == "__main__":
    main()
