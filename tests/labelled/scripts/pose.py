"""Finds the joints of people: a residual network and three steps back to a quarter of the size make a map for each
joint, which is to be bright where the joint is."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

JOINTS, REACH = 17, 6


class Bottleneck(nn.Module):
    def __init__(self, enter, inner, stride):
        super().__init__()
        self.first = nn.Conv2d(enter, inner, 1, bias=False)
        self.second = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.third = nn.Conv2d(inner, 4 * inner, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in (inner, inner, 4 * inner))
        same = enter == 4 * inner and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(enter, 4 * inner, 1, stride, bias=False)

    def forward(self, x):
        way = F.relu(self.norms[0](self.first(x)))
        way = F.relu(self.norms[1](self.second(way)))
        return F.relu(self.skip(x) + self.norms[2](self.third(way)))


class Pose(nn.Module):
    def __init__(self, args):
        super().__init__()
        width = args.width
        parts = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        enter = width
        for stage, count in enumerate(args.blocks):
            for number in range(count):
                inner = width * 2**stage
                parts.append(Bottleneck(enter, inner, 2 if stage and not number else 1))
                enter = 4 * inner
        for _ in range(len(args.blocks) - 1):
            parts += [nn.ConvTranspose2d(enter, 4 * width, 4, 2, 1, bias=False), nn.BatchNorm2d(4 * width), nn.ReLU()]
            enter = 4 * width
        self.layers = nn.Sequential(*parts, nn.Conv2d(enter, JOINTS, 1))

    def forward(self, x):
        return self.layers(x)


def drawn(joints, size):
    """Maps of bright spots."""
    high, wide = size[0] // 4, size[1] // 4
    maps = np.zeros((JOINTS, high, wide), np.float32)
    for joint, (y, x) in enumerate(joints // 4):
        rows = np.arange(max(0, y - REACH), min(high, y + REACH + 1))
        columns = np.arange(max(0, x - REACH), min(wide, x + REACH + 1))
        spot = np.exp(-((rows[:, None] - y) ** 2 + (columns - x) ** 2) / 8.0)
        maps[joint, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = spot
    return maps


class People(Dataset):
    """Cut out of photos before; half of them are turned round."""

    def __init__(self, args):
        rng = np.random.default_rng(620)
        self.size = args.size
        self.pictures = rng.integers(0, 256, (args.people, *args.size, 3), dtype=np.uint8)
        self.joints = rng.integers(0, args.size, (args.people, JOINTS, 2))

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, place):
        picture, joints = self.pictures[place], self.joints[place].copy()
        if place % 2:
            picture, joints[:, 1] = picture[:, ::-1], self.size[1] - 1 - joints[:, 1]
        return torch.from_numpy(picture.copy()), torch.from_numpy(drawn(joints, self.size))


def batches(args, device):
    people, cuda = People(args), device.type == "cuda"
    order = RandomSampler(people, generator=torch.Generator().manual_seed(621))
    if args.workers:
        loader = DataLoader(
            people, args.batch, sampler=order, num_workers=args.workers, pin_memory=cuda, drop_last=True,
            persistent_workers=args.persistent,
        )  # fmt: skip
        while True:
            for pictures, maps in loader:
                yield pictures.to(device, non_blocking=True), maps.to(device, non_blocking=True)
    kept = [[part.to(device) for part in batch] for batch in DataLoader(people, args.batch, drop_last=True)][:3]
    while True:
        yield from kept


def places(maps):
    """Of the brightest pixel, moved a quarter of a pixel to the brighter side, as is usual."""
    found = np.zeros((*maps.shape[:2], 2), np.float32)
    for number, own in enumerate(maps):
        for joint, one in enumerate(own):
            y, x = np.unravel_index(one.argmax(), one.shape)
            if 0 < y < one.shape[0] - 1 and 0 < x < one.shape[1] - 1:
                way = np.sign([one[y + 1, x] - one[y - 1, x], one[y, x + 1] - one[y, x - 1]])
                found[number, joint] = (y, x) + 0.25 * way
            else:
                found[number, joint] = y, x
    return found


def places_there(maps):
    """The same, on the device."""
    high, wide = maps.shape[2:]
    best = maps.flatten(2).argmax(2)
    y, x = best // wide, best % wide
    inside = (y > 0) & (y < high - 1) & (x > 0) & (x < wide - 1)
    padded = F.pad(maps, (1, 1, 1, 1)).flatten(2)
    middle = (y + 1) * (wide + 2) + x + 1
    around = [padded.gather(2, (middle + by)[..., None])[..., 0] for by in (wide + 2, -wide - 2, 1, -1)]
    way = torch.stack([(around[0] - around[1]).sign(), (around[2] - around[3]).sign()], -1)
    return torch.stack([y, x], -1) + 0.25 * way * inside[..., None]


def right_share(maps, wanted, score):
    """Share of the joints that are found near where they are (PCK)."""
    if score == "numpy":
        found, right = (places(part.float().cpu().numpy()) for part in (maps, wanted))
        return float((np.linalg.norm(found - right, axis=-1) < 3).mean())
    found, right = places_there(maps.float()), places_there(wanted)
    return (torch.linalg.vector_norm(found - right, dim=-1) < 3).float().mean()


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(622)
    with device:
        model = Pose(args).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    source, scores = batches(args, device), []
    for step in range(1, 1_000_000):
        pictures, wanted = next(source)
        pictures = pictures.permute(0, 3, 1, 2).float().div(255)
        with torch.autocast(device.type, torch.bfloat16):
            maps = model(pictures)
        loss = F.mse_loss(maps.float(), wanted) * 100
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if args.score != "none":
            scores.append(right_share(maps.detach(), wanted, args.score))
        if step % 50 == 0:
            share = f", right {float(sum(scores)) / len(scores):.4f}" if scores else ""
            print(f"step {step}: loss {loss.item():.4f}{share}", flush=True)
            scores.clear()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, nargs=2, default=[256, 192], help="of a picture, in pixels")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", type=int, nargs="+", default=[3, 4, 6, 3], help="of each scale")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--people", type=int, default=1280)
    parser.add_argument("--workers", type=int, default=0, help="that draw maps; 0: few batches that lie on the device")
    parser.add_argument("--persistent", action="store_true", help="workers live on after all people have been seen")
    parser.add_argument("--score", choices=["none", "numpy", "device"], default="none", help="how each batch is scored")
    main(parser.parse_args())
