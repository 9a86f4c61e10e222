"""Learns to lay scans of heads over each other (registration, as VoxelMorph): a 3D U-Net sees both and says how fast
each place flows; following the flow for a while moves one scan onto the other."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, args):
        super().__init__()
        widths = [args.width, 2 * args.width, 2 * args.width, 4 * args.width]
        self.enter = nn.Conv3d(2 * args.contrasts, widths[0], 3, padding=1)
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(nn.Conv3d(a, b, 3, stride=2, padding=1) for a, b in pairs)
        self.stay = nn.ModuleList(nn.Conv3d(b, b, 3, padding=1) for _, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, stride=2) for a, b in pairs[::-1])
        self.merge = nn.ModuleList(nn.Conv3d(2 * a, a, 3, padding=1) for a, _ in pairs[::-1])
        self.flow = nn.Conv3d(widths[0], 3, 3, padding=1)
        nn.init.normal_(self.flow.weight, std=1e-4)
        nn.init.zeros_(self.flow.bias)

    def forward(self, x):
        x = F.leaky_relu(self.enter(x), 0.2)
        kept = []
        for down, stay in zip(self.down, self.stay, strict=True):
            kept.append(x)
            x = F.leaky_relu(stay(F.leaky_relu(down(x), 0.2)), 0.2)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = F.leaky_relu(merge(torch.cat([up(x), kept.pop()], dim=1)), 0.2)
        return self.flow(x)


def moved(x, flow, grid):
    """x as seen from places that are moved by the flow, which is in shares of the size."""
    return F.grid_sample(x, grid + flow.permute(0, 2, 3, 4, 1), align_corners=True, padding_mode="border")


def follow(speed, grid, doublings):
    flow = speed / 2**doublings
    for _ in range(doublings):
        flow = flow + moved(flow, flow, grid)
    return flow


def roughness(flow):
    return sum(torch.diff(flow, dim=axis).square().mean() for axis in (2, 3, 4))


def pairs(args, device):
    """Two of the scans, of each of the batch."""
    draw = torch.Generator().manual_seed(1811)
    scans = torch.rand(args.scans, args.contrasts, *args.size, generator=draw)
    if args.volumes == "device":
        scans = scans.to(device)
    elif args.volumes == "pinned" and device.type == "cuda":
        scans = scans.pin_memory()
    while True:
        chosen = torch.rand(args.batch, args.scans, generator=draw).argsort(1)[:, :2].T.tolist()
        yield [torch.stack([scans[n].to(device, non_blocking=True) for n in side]) for side in chosen]


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1812)
    form = torch.channels_last_3d if args.channels_last else torch.contiguous_format
    model = Net(args).to(device, memory_format=form)
    optimizer = torch.optim.Adam(model.parameters(), args.lr, fused=True)
    whole = torch.eye(3, 4, device=device).expand(args.batch, 3, 4)
    grid = F.affine_grid(whole, [args.batch, 3, *args.size], align_corners=True)
    for step, (moving, fixed) in enumerate(pairs(args, device), 1):
        with torch.autocast(device.type, torch.bfloat16):
            speed = model(torch.cat([moving, fixed], dim=1).contiguous(memory_format=form))
        flow = follow(speed.float().contiguous(), grid, args.doublings)
        loss = F.mse_loss(moved(moving, flow, grid), fixed) + 0.05 * roughness(flow)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, nargs=3, default=[160, 192, 160], help="of a scan")
    parser.add_argument("--contrasts", type=int, default=1, help="scans of each head that lie over each other already")
    parser.add_argument("--scans", type=int, default=8, help="heads that are stored")
    parser.add_argument("--volumes", choices=["plain", "pinned", "device"], default="device", help="where they are")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--doublings", type=int, default=4, help="of the time for which the flow is followed")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
