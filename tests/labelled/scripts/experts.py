"""Trains a language model whose feed-forward layers are experts, one for each group of words (hash layers): experts are
divided over the ranks, which exchange their words before and after each layer. All else is on each rank."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Swap(torch.autograd.Function):
    """Sends each rank its share of the rows; gradients come back."""

    @staticmethod
    def forward(ctx, x, sent, got):
        ctx.sent, ctx.got = sent, got
        out = x.new_empty(sum(got), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), got, sent)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.sent), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), ctx.sent, ctx.got)
        return out, None, None


class Sort(torch.autograd.Function):
    """Rows in another order, which `back` undoes."""

    @staticmethod
    def forward(ctx, x, order, back):
        ctx.back = back
        return x.index_select(0, order)

    @staticmethod
    def backward(ctx, grad):
        return grad.index_select(0, ctx.back), None, None


class Plan:
    """Where the words of a batch go, which is known from the words alone. `owners`: the rank of each expert."""

    def __init__(self, groups, owners, ranks, rank, device):
        groups, owners = groups.flatten().cpu(), owners.cpu()
        places = torch.argsort(owners, stable=True)  # experts, by the rank that has them
        ordinal = torch.argsort(places)[groups]
        self.order = torch.argsort(ordinal, stable=True).to(device)
        self.back = torch.argsort(self.order)
        counts = torch.bincount(ordinal, minlength=len(owners)).view(1, -1)
        everywhere = [torch.empty_like(counts, device=device) for _ in range(ranks)]
        if ranks > 1:
            dist.all_gather(everywhere, counts.to(device))
            counts = torch.cat(everywhere).cpu()
        mine = owners[places] == rank
        self.sent = [int(counts[rank][owners[places] == to].sum()) for to in range(ranks)]
        self.got = [int(row[mine].sum()) for row in counts]
        here = counts[:, mine]  # by rank, then by expert
        expert = torch.arange(here.shape[1]).repeat(ranks).repeat_interleave(here.flatten())
        self.sort = torch.argsort(expert, stable=True).to(device)
        self.unsort = torch.argsort(self.sort)
        self.sizes = here.sum(0).tolist()


class Experts(nn.Module):
    def __init__(self, width, hidden, mine, ranks, device):
        super().__init__()
        self.ranks, self.mine = ranks, mine
        self.up, self.down = nn.ParameterList(), nn.ParameterList()
        for expert in mine:
            draw = torch.Generator(device).manual_seed(933 + expert)
            self.up.append(torch.randn(hidden, width, generator=draw, device=device) * 0.02)
            self.down.append(torch.randn(width, hidden, generator=draw, device=device) * 0.02)
        if ranks > 1:  # words of all ranks are in an expert's gradients
            for weight in self.parameters():
                weight.register_hook(lambda grad: grad / ranks)

    def forward(self, x, plan):
        shape = x.shape
        x = Sort.apply(x.flatten(0, 1), plan.order, plan.back)
        if self.ranks > 1:
            x = Sort.apply(Swap.apply(x, plan.sent, plan.got), plan.sort, plan.unsort)
        parts = x.split(plan.sizes)
        x = torch.cat(
            [F.linear(F.relu(F.linear(h, up)), down) for h, up, down in zip(parts, self.up, self.down, strict=True)]
        )
        if self.ranks > 1:
            x = Swap.apply(Sort.apply(x, plan.unsort, plan.sort), plan.got, plan.sent)
        return Sort.apply(x, plan.back, plan.order).view(shape)


class Layer(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.heads, self.experts = width // 128, experts
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x, plan):
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, 128)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.experts(self.second(x).to(torch.bfloat16), plan)


class Net(nn.Module):
    def __init__(self, args, mine, ranks, device):
        super().__init__()
        self.table = nn.Embedding(args.words, args.width)
        nn.init.normal_(self.table.weight, std=0.02)
        self.layers = nn.ModuleList(
            Layer(args.width, Experts(args.width, args.hidden, mine, ranks, device)) for _ in range(args.layers)
        )
        self.norm = nn.RMSNorm(args.width)

    def forward(self, tokens, plan):
        x = self.table(tokens[:, :-1])
        for layer in self.layers:
            x = layer(x, plan)
        return F.cross_entropy(F.linear(self.norm(x), self.table.weight).flatten(0, 1), tokens[:, 1:].flatten())


def owners_of(loads, ranks, how):
    """The rank of each expert; groups of words are unlike in how common they are."""
    count = len(loads)
    if how == "in_order":
        return torch.arange(count) * ranks // count
    owners, full, room = torch.zeros(count, dtype=torch.long), [0.0] * ranks, [count // ranks] * ranks
    for expert in sorted(range(count), key=lambda e: -loads[e]):
        owners[expert] = to = min((rank for rank in range(ranks) if room[rank]), key=lambda rank: full[rank])
        full[to] += loads[expert]
        room[to] -= 1
    return owners


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    loads = 1 / (torch.arange(args.experts) + 1.5) ** args.skew
    owners = owners_of((loads / loads.sum()).tolist(), ranks, args.place)
    mine = [expert for expert in range(args.experts) if owners[expert] == rank]
    torch.manual_seed(931)
    with device:
        model = Net(args, mine, ranks, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    wrapped = model
    if ranks > 1:
        apart = [name for name, _ in model.named_parameters() if ".experts." in name]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, apart)
        wrapped = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)

    draw, batches, each = torch.Generator().manual_seed(932 + rank), [], args.words // args.experts
    for _ in range(4):
        shape = (args.batch, args.length + 1)
        groups = torch.multinomial(loads, shape[0] * shape[1], replacement=True, generator=draw).view(shape)
        tokens = groups * each + torch.randint(each, shape, generator=draw)
        batches.append((tokens.to(device), Plan(groups[:, :-1], owners, ranks, rank, device)))
    for step in range(1, 10_000_000):
        with torch.autocast(device.type, torch.bfloat16):
            loss = wrapped(*batches[step % len(batches)])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0 and step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=8192, help="width within an expert")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--words", type=int, default=16_384, help="in the table")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8, help="texts, of each rank")
    parser.add_argument("--skew", type=float, default=1.0, help="how unlike groups of words are, 0: not")
    parser.add_argument("--place", choices=["in_order", "balanced"], default="balanced", help="experts on ranks")
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
