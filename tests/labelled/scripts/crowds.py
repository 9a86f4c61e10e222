"""Counts people in crowds (as CSRNet): the first layers of a VGG, convolutions with holes behind them, and a map of how
many people stand where, learnt from points that somebody put on each head."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn

SCALE = 8  # of a picture to its map


def bell(radius, device):
    """What one head is on a map; sums to one."""
    at = torch.arange(-radius, radius + 1, device=device) / (0.5 * radius)
    line = torch.exp(-0.5 * at**2)
    both = line[:, None] * line
    return both / both.sum()


class Counter(nn.Module):
    def __init__(self, width):
        super().__init__()
        parts, enter = [], 3
        for leave in (1, 1, "M", 2, 2, "M", 4, 4, 4, "M", 8, 8, 8):
            if leave == "M":
                parts.append(nn.MaxPool2d(2))
                continue
            parts += [nn.Conv2d(enter, leave * width, 3, padding=1), nn.ReLU(inplace=True)]
            enter = leave * width
        for leave in (8, 8, 8, 4, 2, 1):
            parts += [nn.Conv2d(enter, leave * width, 3, padding=2, dilation=2), nn.ReLU(inplace=True)]
            enter = leave * width
        self.body, self.head = nn.Sequential(*parts), nn.Conv2d(enter, 1, 1)

    def forward(self, pictures):
        return self.head(self.body(pictures))[:, 0]


def drawn_each(points, size, radius):
    """Maps of points (pictures, heads, 2): a head after the other."""
    one, maps = bell(radius, points.device), torch.zeros(len(points), *size, device=points.device)
    for canvas, heads in zip(maps, points, strict=True):
        for head in heads:
            row, column = int(head[0]), int(head[1])
            top, left = max(row - radius, 0), max(column - radius, 0)
            part = canvas[top : row + radius + 1, left : column + radius + 1]
            above, beside = top - (row - radius), left - (column - radius)
            part += one[above : above + part.shape[0], beside : beside + part.shape[1]]
    return maps


def drawn_joint(points, size, radius):
    rows, columns = points.long().unbind(2)
    maps = torch.zeros(len(points), size[0] * size[1], device=points.device)
    maps.scatter_add_(1, rows * size[1] + columns, torch.ones_like(points[..., 0]))
    return F.conv2d(maps.view(-1, 1, *size), bell(radius, points.device)[None, None], padding=radius)[:, 0]


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(2210)
    form = torch.channels_last if args.channels_last else torch.contiguous_format
    model = Counter(args.width).to(device, memory_format=form)
    optimizer = torch.optim.Adam(model.parameters(), args.lr, fused=True)
    height, width = args.size
    size = (height // SCALE, width // SCALE)
    scenes = []
    for _ in range(3):
        pictures = torch.rand(args.batch, 3, height, width, device=device).contiguous(memory_format=form)
        scenes.append((pictures, [torch.rand(args.heads, 2) * torch.tensor(size) for _ in range(args.batch)]))
    drawn = {"each": drawn_each, "joint": drawn_joint}[args.maps]
    error = 0.0
    for step, (pictures, heads) in enumerate(itertools.cycle(scenes), 1):
        points = torch.stack([own.to(device) for own in heads])
        wanted = drawn(points, size, args.radius)
        with torch.autocast(device.type, torch.bfloat16):
            found = model(pictures)
        loss = F.mse_loss(100 * found.float(), 100 * wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        off = (found.float().sum((1, 2)) - wanted.sum((1, 2))).abs().mean().item()
        error = 0.95 * error + 0.05 * off
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}, off by {error:.1f} people", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, nargs=2, default=[768, 1024], help="height and width of a picture")
    parser.add_argument("--width", type=int, default=64, help="of the first layers")
    parser.add_argument("--heads", type=int, default=60, help="in a picture")
    parser.add_argument("--maps", choices=["each", "joint"], default="joint", help="how heads come on a map")
    parser.add_argument("--radius", type=int, default=7, help="of a head on a map")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
