"""Recommends the next songs of playlists from a catalogue of millions: a transformer reads the playlist, the song that
came next must score higher than others that are drawn by how popular they are (sampled softmax). One GPU or DDP."""

import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Popular:
    """Draws songs by how often they are heard."""

    def __init__(self, args, device):
        self.how = args.draw
        self.weights = 1 / (torch.arange(args.songs, device=device) + 100.0) ** 0.75
        self.shares = self.weights / self.weights.sum()
        self.below = self.shares.double().cumsum(0)

    def __call__(self, count):
        if self.how == "multinomial":
            return torch.multinomial(self.weights, count, replacement=True)
        at = torch.rand(count, device=self.below.device, dtype=torch.double) * self.below[-1]
        return torch.searchsorted(self.below, at).clamp(max=len(self.below) - 1)


class Playlists(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.songs = nn.Embedding(args.songs, args.song_width, sparse=args.song_gradients == "rows")
        nn.init.normal_(self.songs.weight, std=args.song_width**-0.5)
        self.enter = nn.Linear(args.song_width, args.width)
        self.places = nn.Parameter(0.02 * torch.randn(args.length, args.width))
        layer = nn.TransformerEncoderLayer(
            args.width, args.width // 64, 4 * args.width, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.body = nn.TransformerEncoder(layer, args.layers, norm=nn.LayerNorm(args.width), enable_nested_tensor=False)
        self.leave = nn.Linear(args.width, args.song_width)

    def forward(self, heard, others, shares):
        looked_up = self.songs(torch.cat([heard.flatten(), others]))
        songs, wrong = looked_up[: heard.numel()].view(*heard.shape, -1), looked_up[heard.numel() :]
        mask = nn.Transformer.generate_square_subsequent_mask(heard.shape[1] - 1, device=heard.device)
        x = self.body(self.enter(songs[:, :-1]) + self.places, mask=mask, is_causal=True)
        told = self.leave(x).flatten(0, 1)
        right = (told * songs[:, 1:].flatten(0, 1)).sum(-1, dtype=torch.float32)
        right = right - shares[heard[:, 1:]].flatten().log()
        scores = F.linear(told, wrong.to(told.dtype)) - (shares[others] * len(others)).log().to(told.dtype)
        return (torch.logaddexp(right, scores.float().logsumexp(-1)) - right).mean()


def share_rows(table, ranks):
    """Gradients of the songs that any rank has seen."""
    grad = table.grad
    places, rows = grad._indices().contiguous(), grad._values().contiguous()
    all_places = places.new_empty(ranks * places.shape[1])
    all_rows = rows.new_empty(ranks * rows.shape[0], rows.shape[1])
    dist.all_gather_into_tensor(all_places, places[0])
    dist.all_gather_into_tensor(all_rows, rows)
    table.grad = torch.sparse_coo_tensor(all_places[None], all_rows / ranks, grad.shape, check_invariants=False)


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(981)
    with device:
        model = Playlists(args)
    table = model.songs.weight
    others = [weight for weight in model.parameters() if weight is not table]
    dense = torch.optim.AdamW(others, lr=3e-4, fused=True)
    sparse = torch.optim.SGD([table], lr=0.1)
    wrapped = model
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
        if args.song_gradients == "rows":
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["songs.weight"])
        wrapped = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    popular = Popular(args, device)
    torch.manual_seed(982 + rank)
    heard = [
        (args.songs * torch.rand(args.batch, args.length + 1, device=device) ** 4).long().clamp(max=args.songs - 1)
        for _ in range(4)
    ]
    for step in range(1, 10_000_000):
        drawn = popular(args.others)
        with torch.autocast(device.type, torch.bfloat16):
            loss = wrapped(heard[step % len(heard)], drawn, popular.shares)
        loss.backward()
        if ranks > 1 and args.song_gradients == "rows":
            share_rows(table, ranks)
        dense.step()
        sparse.step()
        dense.zero_grad(set_to_none=True)
        sparse.zero_grad(set_to_none=True)
        if rank == 0 and step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f} of {math.log(args.others + 1):.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--songs", type=int, default=8_000_000, help="in the catalogue")
    parser.add_argument("--song-width", type=int, default=128)
    parser.add_argument("--song-gradients", choices=["rows", "all"], default="rows", help="of songs seen, or of all")
    parser.add_argument("--others", type=int, default=8192, help="songs that are drawn")
    parser.add_argument("--draw", choices=["multinomial", "search"], default="search")
    parser.add_argument("--length", type=int, default=64, help="songs of a playlist")
    parser.add_argument("--batch", type=int, default=512, help="playlists, of each rank")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
