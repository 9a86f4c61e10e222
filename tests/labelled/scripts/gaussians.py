"""Fits pictures with Gaussians (as in Gaussian splatting, in two dimensions): each has a place, a shape, a colour and
an opacity, each tile of a picture blends those that are nearest to it from front to back."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

TILE = 16


class Blend(nn.Module):
    """Colours of all pixels of all tiles, from the Gaussians of each tile."""

    def __init__(self):
        super().__init__()
        line = torch.arange(TILE) + 0.5
        self.register_buffer("pixels", torch.stack(torch.meshgrid(line, line, indexing="xy"), dim=-1).flatten(0, 1))

    def forward(self, corners, places, scales, turns, opacities, colours):
        """corners: (tiles, 2); all else: (tiles, Gaussians) or with one more dimension."""
        x, y = (corners[:, None] + self.pixels).unbind(-1)
        dx, dy = x[:, :, None] - places[:, None, :, 0], y[:, :, None] - places[:, None, :, 1]
        cos, sin = turns.cos()[:, None], turns.sin()[:, None]
        along, across = cos * dx + sin * dy, cos * dy - sin * dx
        far = (along * scales[:, None, :, 0]).square() + (across * scales[:, None, :, 1]).square()
        alpha = (opacities[:, None] * torch.exp(-0.5 * far)).clamp(max=0.99)
        through = torch.log1p(-alpha)
        before = through.cumsum(-1) - through
        return (alpha * before.exp()) @ colours


class Picture(nn.Module):
    """The Gaussians of a picture, spread evenly at first."""

    def __init__(self, args):
        super().__init__()
        count = args.gaussians
        self.places = nn.Parameter(torch.rand(count, 2) * args.size)
        self.scales = nn.Parameter(torch.full((count, 2), -1.5) + 0.3 * torch.randn(count, 2))
        self.turns = nn.Parameter(torch.rand(count) * 3.1416)
        self.opacities, self.colours = nn.Parameter(torch.zeros(count)), nn.Parameter(torch.rand(count, 3))
        line = torch.arange(0, args.size, TILE, dtype=torch.float32)
        self.register_buffer("corners", torch.cartesian_prod(line, line).flip(1))
        self.nearest = args.nearest

    @torch.no_grad()
    def assign(self):
        """Which Gaussians are nearest to each tile, by number, which is their order from front to back."""
        middles = self.corners + TILE / 2
        found = [
            torch.cdist(some, self.places).topk(self.nearest, largest=False).indices for some in middles.split(512)
        ]
        self.of_tiles = torch.cat(found).sort(1).values

    def chosen(self):
        rows = self.of_tiles.flatten()
        parts = (self.places, self.scales.exp(), self.turns, self.opacities.sigmoid(), self.colours)
        return [part.index_select(0, rows).unflatten(0, self.of_tiles.shape) for part in parts]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=768, help="of a picture, in pixels")
    parser.add_argument("--pictures", type=int, default=4)
    parser.add_argument("--gaussians", type=int, default=20_000, help="of a picture")
    parser.add_argument("--nearest", type=int, default=48, help="Gaussians of a tile")
    parser.add_argument("--host-pictures", type=int, default=0, help="whose saved tensors wait on the host")
    parser.add_argument("--compile", action="store_true", help="what blends")
    parser.add_argument("--assign-every", type=int, default=500)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(1751)
    with device:
        pictures, blend = nn.ModuleList(Picture(args) for _ in range(args.pictures)), Blend()
        coarse = torch.rand(args.pictures, 3, args.size // 8, args.size // 8)
    if args.compile:
        blend.compile()
    wanted = F.interpolate(coarse, size=(args.size, args.size), mode="bilinear")
    wanted = F.pixel_unshuffle(wanted, TILE).unflatten(1, (3, -1)).permute(0, 3, 4, 2, 1).flatten(1, 2).contiguous()
    optimizer = torch.optim.Adam(pictures.parameters(), args.lr, eps=1e-15, fused=True)
    for step in range(1, 10_000_000):
        total = 0.0
        for number, (picture, seen) in enumerate(zip(pictures, wanted, strict=True)):
            if step % args.assign_every == 1:
                picture.assign()
            if number < args.host_pictures:
                with torch.autograd.graph.save_on_cpu(pin_memory=cuda):
                    told = blend(picture.corners, *picture.chosen())
                    loss = (told - seen).abs().mean()
            else:
                told = blend(picture.corners, *picture.chosen())
                loss = (told - seen).abs().mean()
            total = total + loss
        total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.print_every == 0:
            print(f"step {step}: loss {total.item() / args.pictures:.5f}", flush=True)


if __name__ == "__main__":
    main()
