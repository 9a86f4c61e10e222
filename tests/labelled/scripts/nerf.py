"""Learns a scene from pictures with a radiance field (NeRF): a coarse network says where the fine one is to look."""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

NEAR, FAR = 2.0, 6.0


def waves(x, octaves):
    """Positions as sines and cosines of growing frequency."""
    scaled = x[..., None, :] * (2.0 ** torch.arange(octaves, device=x.device))[:, None]
    return torch.cat([x, scaled.sin().flatten(-2), scaled.cos().flatten(-2)], -1)


class Field(nn.Module):
    """Density and colour at a point, seen from a direction."""

    def __init__(self, width, depth):
        super().__init__()
        point, direction = 3 * 21, 3 * 9
        self.first = nn.ModuleList(nn.Linear(point if n == 0 else width, width) for n in range(depth // 2))
        self.second = nn.ModuleList(
            nn.Linear(width + point if n == 0 else width, width) for n in range(depth - depth // 2)
        )
        self.density = nn.Linear(width, 1)
        self.colour = nn.Sequential(nn.Linear(width + direction, width // 2), nn.ReLU(), nn.Linear(width // 2, 3))

    def forward(self, points, directions):
        seen = waves(points, 10)
        x = seen
        for layer in self.first:
            x = F.relu(layer(x))
        x = torch.cat([x, seen], -1)
        for layer in self.second:
            x = F.relu(layer(x))
        return torch.cat([self.colour(torch.cat([x, waves(directions, 4)], -1)), self.density(x)], -1)


def shade(raw, depths):
    """The colour of each ray, and what each of its points adds to it."""
    steps = torch.cat([depths[:, 1:] - depths[:, :-1], torch.full_like(depths[:, :1], 1e10)], 1)
    opaque = 1 - torch.exp(-F.relu(raw[..., 3]) * steps)
    clear = torch.cumprod(torch.cat([torch.ones_like(opaque[:, :1]), 1 - opaque + 1e-10], 1), 1)[:, :-1]
    weights = opaque * clear
    return (weights[..., None] * torch.sigmoid(raw[..., :3])).sum(1), weights


def where_it_matters(depths, weights, count):
    """More depths, drawn where points add much."""
    middle = (depths[:, 1:] + depths[:, :-1]) / 2
    share = weights[:, 1:-1] + 1e-5
    total = torch.cumsum(share / share.sum(1, keepdim=True), 1)
    total = torch.cat([torch.zeros_like(total[:, :1]), total], 1)
    drawn = torch.rand(len(depths), count, device=depths.device)
    above = torch.searchsorted(total, drawn, right=True).clamp(1, total.shape[1] - 1)
    low, high = total.gather(1, above - 1), total.gather(1, above)
    part = (drawn - low) / (high - low).clamp(min=1e-5)
    begin, end = middle.gather(1, above - 1), middle.gather(1, above)
    return torch.cat([depths, begin + part * (end - begin)], 1).sort(1).values


class Scene(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.coarse, self.fine = Field(args.width, args.depth), Field(args.width, args.depth)

    def look(self, field, origins, directions, depths):
        points = (origins[:, None] + directions[:, None] * depths[..., None]).flatten(0, 1)
        towards = F.normalize(directions, dim=1)[:, None].expand(-1, depths.shape[1], -1).flatten(0, 1)
        chunk = self.args.chunk or len(points)
        raw = torch.cat([field(*part) for part in zip(points.split(chunk), towards.split(chunk), strict=True)])
        return raw.float().view(*depths.shape, 4)

    def forward(self, origins, directions):
        depths = torch.linspace(NEAR, FAR, self.args.samples, device=origins.device).expand(len(origins), -1)
        depths = depths + torch.rand_like(depths) * ((FAR - NEAR) / self.args.samples)
        colours, weights = shade(self.look(self.coarse, origins, directions, depths), depths)
        depths = where_it_matters(depths, weights.detach(), self.args.fine)
        return colours, shade(self.look(self.fine, origins, directions, depths), depths)[0]


def all_rays(count, side, device):
    """Origin, direction and colour of each pixel of all pictures, taken from a circle around the scene."""
    angles = torch.arange(count, device=device) * (2 * torch.pi / count)
    eyes = torch.stack([4 * angles.cos(), 4 * angles.sin(), torch.ones_like(angles)], 1)
    ahead = -F.normalize(eyes, dim=1)
    right = F.normalize(torch.linalg.cross(ahead, torch.tensor([[0.0, 0.0, 1.0]], device=device)), dim=1)
    up = torch.linalg.cross(right, ahead)
    y, x = torch.meshgrid(*(torch.linspace(-0.5, 0.5, side, device=device),) * 2, indexing="ij")
    towards = ahead[:, None, None] + x[..., None] * right[:, None, None] - y[..., None] * up[:, None, None]
    origins = eyes[:, None, None].expand_as(towards)
    return torch.cat([origins, towards, torch.rand_like(towards)], -1).view(-1, 9)


@torch.no_grad()
def validate(scene, view, ranks, rank, how):
    """How far a view that was left out is from what the scene looks like from there."""
    rays = view.tensor_split(ranks)[rank] if how == "shared" else view
    off = (scene(rays[:, :3], rays[:, 3:6])[1] - rays[:, 6:]).square().sum() / view.shape[0]
    if how == "shared" and ranks > 1:
        dist.all_reduce(off)
    return off


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(210)
    with device:
        scene = Scene(args)
    model = scene
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = DistributedDataParallel(scene, device_ids=[local] if cuda else None)
    rays = all_rays(args.pictures, args.side, device)
    view = rays[torch.randint(len(rays), (args.view**2,), device=device)]
    optimizer = torch.optim.Adam(scene.parameters(), lr=1e-5, fused=True)
    torch.manual_seed(211 + rank)
    rng = np.random.RandomState(211 + rank)
    for step in range(1, 1_000_000):
        if args.pick == "without_repeats":
            picked = torch.from_numpy(rng.choice(len(rays), args.rays, replace=False)).to(device)
        else:
            picked = torch.randint(len(rays), (args.rays,), device=device)
        some = rays[picked]
        with torch.autocast(device.type, torch.bfloat16):
            coarse, fine = model(some[:, :3], some[:, 3:6])
        loss = F.mse_loss(coarse, some[:, 6:]) + F.mse_loss(fine, some[:, 6:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if args.validate == "shared" or (args.validate == "rank0" and rank == 0):
            with torch.autocast(device.type, torch.bfloat16):
                off = validate(scene, view, ranks, rank, args.validate)
            if step % 100 == 0 and rank == 0:
                print(f"step {step}: {off.item():.4f} in the view", flush=True)
        if step % 100 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--rays", type=int, default=4096, help="of a step of each rank")
    parser.add_argument("--samples", type=int, default=64, help="of a ray, by the coarse network")
    parser.add_argument("--fine", type=int, default=128, help="more of them, by the fine one")
    parser.add_argument("--chunk", type=int, default=0, help="points that go through a network at once; 0: all")
    parser.add_argument("--pictures", type=int, default=16)
    parser.add_argument("--side", type=int, default=400, help="of a picture, in pixels")
    parser.add_argument("--pick", choices=["any", "without_repeats"], default="any", help="pixels of a step")
    parser.add_argument("--validate", choices=["shared", "rank0"], help="after each step, by whom")
    parser.add_argument("--view", type=int, default=160, help="side of the view, in pixels")
    main(parser.parse_args())
