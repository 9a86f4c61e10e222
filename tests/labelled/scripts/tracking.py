"""Follows points through videos: what a point looks like in the frame where it was picked is sought in all frames, and
a transformer over time improves its places and tells where it can be seen."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, enter, leave, stride=1):
        super().__init__()
        self.first = nn.Conv2d(enter, leave, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(leave, leave, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(leave) for _ in range(2))
        self.skip = nn.Identity() if enter == leave and stride == 1 else nn.Conv2d(enter, leave, 1, stride)

    def forward(self, x):
        return F.relu(self.skip(x) + self.norms[1](self.second(F.relu(self.norms[0](self.first(x))))))


def tower(widths, deep):
    parts = [nn.Conv2d(3, widths[0], 7, 2, 3)]
    for enter, leave in itertools.pairwise(widths):
        parts += [Residual(enter, leave, 2), *(Residual(leave, leave) for _ in range(deep))]
    return nn.Sequential(*parts)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // 64)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.mix(self.first(x)).chunk(3, -1)
        )
        x = x + self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Tracker(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.frames, self.look = tower(args.widths, args.deep), tower(args.widths, 1)
        self.over_time = nn.Parameter(torch.randn(args.frames, args.width) * 0.02)
        cells = (args.size[0] // 8) * (args.size[1] // 8)
        self.enter = nn.Linear(cells + args.widths[-1], args.width)
        self.layers = nn.Sequential(*(Layer(args.width) for _ in range(args.layers)))
        self.norm, self.out = nn.LayerNorm(args.width), nn.Linear(args.width, 3)

    def forward(self, videos, patches):
        batch, frames = videos.shape[:2]
        seen = self.frames(videos.flatten(0, 1)).flatten(2).unflatten(0, (batch, frames))
        sought = self.look(patches).mean((2, 3)).unflatten(0, (batch, -1))
        alike = torch.einsum("bfcp,bnc->bnfp", seen, sought) * sought.shape[-1] ** -0.5
        x = torch.cat([alike, sought[:, :, None].expand(-1, -1, frames, -1)], -1)
        x = self.enter(x.flatten(0, 1)) + self.over_time
        return self.out(self.norm(self.layers(x))).unflatten(0, (batch, -1))


def picked(args, device):
    """For each video: the frames and the middles where points were picked; patches fit into the frames."""
    shape, half = (args.batch, args.points), args.patch // 2
    frame = torch.randint(0, args.frames, shape, device=device)
    y, x = (torch.randint(half, side - half, shape, device=device) for side in args.size)
    return torch.stack([frame, y, x], -1)


def cut(videos, points, args):
    """A patch of the video around each of its points."""
    half = args.patch // 2
    if args.patches == "each":
        patches = []
        for video, own in zip(videos, points, strict=True):
            for point in own:
                frame, y, x = (int(part) for part in point)
                patches.append(video[frame, :, y - half : y + half, x - half : x + half])
        return torch.stack(patches)
    apart = torch.arange(-half, half, device=points.device)
    number = torch.arange(len(videos), device=points.device)[:, None, None, None]
    frame, y, x = (part[..., None, None] for part in points.unbind(-1))
    patches = videos[number, frame, :, y + apart[:, None], x + apart]
    return patches.flatten(0, 1).permute(0, 3, 1, 2)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(540)
    with device:
        model = Tracker(args).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    shape, batches = (args.batch, args.frames, 3, *args.size), []
    for _ in range(2):
        videos = torch.rand(shape, device=device).bfloat16()
        tracks = torch.rand(args.batch, args.points, args.frames, 2, device=device)
        batches.append((videos, tracks, (torch.rand(tracks.shape[:3], device=device) < 0.8).float()))
    for step in range(1, 1_000_000):
        videos, tracks, visible = batches[step % len(batches)]
        patches = cut(videos, picked(args, device), args).contiguous(memory_format=torch.channels_last)
        frames = videos.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16):
            found = model(frames.unflatten(0, videos.shape[:2]), patches).float()
        apart = F.huber_loss(found[..., :2], tracks, reduction="none").sum(-1)
        loss = (apart * visible).sum() / visible.sum()
        loss = loss + F.binary_cross_entropy_with_logits(found[..., 2], visible)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--size", type=int, nargs=2, default=[256, 256], help="of a frame, in pixels")
    parser.add_argument("--points", type=int, default=64, help="followed in each video")
    parser.add_argument("--patch", type=int, default=32, help="side of what is looked at around a point")
    parser.add_argument(
        "--widths", type=int, nargs=3, default=[64, 128, 256], help="at a half to an eighth of the size"
    )
    parser.add_argument("--deep", type=int, default=2, help="more blocks at each")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8, help="videos")
    parser.add_argument("--patches", choices=["each", "joint"], default="joint", help="how they are cut")
    main(parser.parse_args())
