"""Trains a language model whose layers have many experts, two of which see each token: on one GPU, with DDP or FSDP."""

import argparse
import itertools
import os

import torch
import torch.nn.functional as F
from torch import nn

CHOSEN, WORDS = 2, 32_000


class Experts(nn.Module):
    def __init__(self, width, inner, number, dispatch, room):
        super().__init__()
        self.router = nn.Linear(width, number, bias=False)
        self.up = nn.Parameter(torch.randn(number, width, inner) * width**-0.5)
        self.down = nn.Parameter(torch.randn(number, inner, width) * inner**-0.5)
        self.dispatch, self.room = dispatch, room

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, 1)
        shares = self.router(x).float().softmax(-1)
        share, choice = shares.topk(CHOSEN)
        share = (share / share.sum(-1, keepdim=True)).to(x.dtype)
        return getattr(self, self.dispatch)(x, share, choice).view(shape)

    def weights(self):
        """Of each expert, in the precision of the pass."""
        kind = (
            torch.get_autocast_dtype(self.up.device.type)
            if torch.is_autocast_enabled(self.up.device.type)
            else self.up.dtype
        )
        return self.up.to(kind), self.down.to(kind)

    def one_by_one(self, x, share, choice):
        """Each expert looks for its tokens."""
        out, (up, down) = torch.zeros_like(x), self.weights()
        for number, (widen, narrow) in enumerate(zip(up.unbind(), down.unbind(), strict=True)):
            mine = choice == number
            if not mine.any():
                continue
            token, place = torch.where(mine)
            made = F.gelu(x[token].to(widen.dtype) @ widen) @ narrow
            out.index_add_(0, token, made.to(x.dtype) * share[token, place, None])
        return out

    def by_order(self, x, share, choice):
        """Tokens are sorted by their experts, and cut where the next one's begin."""
        flat, (up, down) = choice.flatten(), self.weights()
        order, counts = flat.argsort(), torch.bincount(flat, minlength=len(up)).tolist()
        pieces = x.to(up.dtype).index_select(0, order // CHOSEN).split(counts)
        made = [
            F.gelu(own @ widen) @ narrow for own, widen, narrow in zip(pieces, up.unbind(), down.unbind(), strict=True)
        ]
        made = torch.cat(made).to(x.dtype) * share.flatten().index_select(0, order)[:, None]
        return torch.zeros_like(x).index_add(0, order // CHOSEN, made)

    def by_slots(self, x, share, choice):
        """Each expert has room for so many tokens; those that come too late pass by."""
        flat, (up, down) = choice.flatten(), self.weights()
        room = int(self.room * len(flat) / len(up)) // 8 * 8 + 8
        is_of = flat[:, None] == torch.arange(len(up), device=x.device)
        place = is_of.int().cumsum(0).gather(1, flat[:, None])[:, 0] - 1
        slot = torch.where(place < room, flat * room + place, len(up) * room)
        sent = x.to(up.dtype)[:, None].expand(-1, CHOSEN, -1).flatten(0, 1)
        held = sent.new_zeros(len(up) * room + 1, x.shape[1]).index_copy(0, slot, sent)
        made = torch.bmm(F.gelu(torch.bmm(held[:-1].unflatten(0, (len(up), room)), up)), down).flatten(0, 1)
        made = F.pad(made, (0, 0, 0, 1)).index_select(0, slot).to(x.dtype) * share.flatten()[:, None]
        return made.unflatten(0, (-1, CHOSEN)).sum(1)


class Layer(nn.Module):
    def __init__(self, opt):
        super().__init__()
        self.heads = max(1, opt.width // 64)
        self.norm1, self.norm2 = nn.LayerNorm(opt.width), nn.LayerNorm(opt.width)
        self.qkv, self.out = nn.Linear(opt.width, 3 * opt.width), nn.Linear(opt.width, opt.width)
        self.experts = Experts(opt.width, opt.inner, opt.experts, opt.dispatch, opt.room)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.experts(self.norm2(x))


class Model(nn.Module):
    def __init__(self, opt):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, opt.width), nn.Embedding(max(opt.lengths), opt.width)
        self.layers = nn.ModuleList(Layer(opt) for _ in range(opt.layers))
        self.norm, self.head = nn.LayerNorm(opt.width), nn.Linear(opt.width, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def spread(model, opt, device, local):
    """Over the ranks: gradients alone, or all that the model has."""
    if opt.shard:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model.layers:
            fully_shard(layer, mp_policy=mixed)
        return fully_shard(model, mp_policy=mixed)
    return nn.parallel.DistributedDataParallel(model, device_ids=[local] if device.type == "cuda" else None)


def main(opt):
    world, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(21)
    with device:
        model = Model(opt)
    if world > 1:
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        model = spread(model, opt, device, local)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    torch.manual_seed(22 + rank)
    texts = torch.randint(0, WORDS, (16, opt.batch, max(opt.lengths) + 1))
    texts = texts.pin_memory() if device.type == "cuda" else texts
    for step in itertools.count():
        # Documents of a batch are of like length.
        turn = step + rank if opt.order == "own" else step
        tokens = texts[step % len(texts), :, : opt.lengths[turn % len(opt.lengths)] + 1]
        tokens = tokens.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=not opt.shard):
            found = model(tokens[:, :-1])
            loss = F.cross_entropy(found.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 99:
            print(step + 1, loss.item(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--inner", type=int, default=2048, help="width of an expert")
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16, help="of each rank")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024], help="of the batches, in turn")
    parser.add_argument(
        "--order", choices=["joint", "own"], default="joint", help="of lengths: one, or one of each rank"
    )
    parser.add_argument("--dispatch", choices=["one_by_one", "by_order", "by_slots"], default="by_slots")
    parser.add_argument("--room", type=float, default=1.25, help="of an expert, as a multiple of its mean share")
    parser.add_argument("--shard", action="store_true", help="FSDP instead of DDP")
    main(parser.parse_args())
