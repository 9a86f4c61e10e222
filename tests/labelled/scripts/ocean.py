"""Forecasts the ocean on a grid: convolutions over the grid, each followed by a norm and a perceptron of each place.
Ranks share the rows of the grid, and before each convolution hand their neighbours the rows at their borders."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def handed(up, down):
    """What the rank above handed down and the rank below handed up; nothing comes from beyond the poles."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    from_above, from_below = torch.zeros_like(down), torch.zeros_like(up)
    ways = []
    if rank > 0:
        ways += [dist.P2POp(dist.isend, up, rank - 1), dist.P2POp(dist.irecv, from_above, rank - 1)]
    if rank < ranks - 1:
        ways += [dist.P2POp(dist.irecv, from_below, rank + 1), dist.P2POp(dist.isend, down, rank + 1)]
    for work in dist.batch_isend_irecv(ways):
        work.wait()
    return from_above, from_below


class Borders(torch.autograd.Function):
    """Rows beyond those of this rank, from its own first and last ones."""

    @staticmethod
    def forward(ctx, first, last, joint):
        ctx.joint = joint
        return Borders.exchanged(first, last, joint)

    @staticmethod
    def backward(ctx, above, below):
        return *Borders.exchanged(above, below, ctx.joint), None

    @staticmethod
    def exchanged(up, down, joint):
        up, down = up.contiguous(), down.contiguous()
        if joint:
            return handed(up, down)
        parts = [handed(*both) for both in zip(up, down, strict=True)]
        return tuple(torch.stack(part) for part in zip(*parts, strict=True))


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.joint, self.last = args.borders == "joint", args.format == "last"
        self.mix = nn.Conv2d(args.width, args.width, 3, bias=False)
        self.norm = nn.LayerNorm(args.width)
        self.up, self.down = nn.Linear(args.width, 2 * args.width), nn.Linear(2 * args.width, args.width)

    def padded(self, x):
        """One row more on both sides, and one place to the east and to the west, where the grid goes round."""
        first, last = x[:, :, 0].transpose(1, 2), x[:, :, -1].transpose(1, 2)
        if dist.is_initialized():
            above, below = Borders.apply(first, last, self.joint)
        else:
            above, below = torch.zeros_like(first), torch.zeros_like(last)
        above, below = (
            row.transpose(1, 2)[:, :, None].contiguous(
                memory_format=torch.channels_last if self.last else torch.contiguous_format
            )
            for row in (above, below)
        )
        x = torch.cat([above, x, below], 2)
        return torch.cat([x[..., -1:], x, x[..., :1]], 3)

    def forward(self, x):
        way = self.norm(self.mix(self.padded(x)).permute(0, 2, 3, 1))
        return x + self.down(F.gelu(self.up(way))).permute(0, 3, 1, 2)


class Ocean(nn.Module):
    def __init__(self, args):
        super().__init__()
        numbers = args.variables * args.patch**2
        self.enter, self.leave = nn.Conv2d(numbers, args.width, 1), nn.Conv2d(args.width, numbers, 1)
        self.blocks = nn.Sequential(*(Block(args) for _ in range(args.blocks)))

    def forward(self, now, coming):
        return F.mse_loss(self.leave(self.blocks(self.enter(now))).float(), coming - now)


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(740)
    order = torch.channels_last if args.format == "last" else torch.contiguous_format
    with device:
        model = Ocean(args).to(memory_format=order)
    parameters = list(model.parameters())
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    torch.manual_seed(741 + rank)
    shape = args.batch, args.variables, args.grid[0] // ranks, args.grid[1]
    days = [torch.randn(shape, device=device) for _ in range(4)]
    days = [F.pixel_unshuffle(day, args.patch).contiguous(memory_format=order) for day in days]
    for step in range(1, 1_000_000):
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(days[step % len(days)], days[(step + 1) % len(days)])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.print_every == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", type=int, nargs=2, default=[720, 1440], help="places to the north and to the east")
    parser.add_argument("--patch", type=int, default=4, help="places that the network sees as one, each way")
    parser.add_argument("--variables", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--batch", type=int, default=4, help="days")
    parser.add_argument("--format", choices=["first", "last"], default="last", help="where channels are in memory")
    parser.add_argument("--borders", choices=["each", "joint"], default="joint", help="how those of days are handed")
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
