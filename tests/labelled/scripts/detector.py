"""Trains a detector of objects without anchors, in the manner of FCOS, on made-up pictures with boxes."""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES, BOXES, STRIDES, FAR = 80, 24, (8, 16, 32), (0, 64, 128, 1e6)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--blocks", type=int, nargs=4, default=[3, 4, 6, 3], help="of the backbone, a ResNet")
parser.add_argument("--base", type=int, default=64, help="channels of its first level")
parser.add_argument("--channels", type=int, default=256, help="of the pyramid and the heads")
parser.add_argument("--size", type=int, default=512)
parser.add_argument("--rank1-size", type=int, help="that of rank 1, where pictures are grouped by size")
parser.add_argument("--batch", type=int, default=32, help="of each rank")
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--mosaic", action="store_true", help="pictures are made of four others as they are loaded")
parser.add_argument("--workers", type=int, default=4, help="that do so")
parser.add_argument("--assign", choices=["device", "numpy"], default="device", help="where boxes find their places")
args = parser.parse_args()

world, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
cuda = torch.cuda.is_available()
device = torch.device("cuda", local) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
if world > 1:
    dist.init_process_group("nccl" if cuda else "gloo")
size = args.rank1_size if rank == 1 and args.rank1_size else args.size
layout = torch.channels_last if args.channels_last else torch.contiguous_format


def boxes_of(rng):
    """Corners of boxes, of which some are larger than others, and their classes."""
    sides = size * np.exp(rng.uniform(np.log(0.05), np.log(0.6), (BOXES, 2)))
    corner = rng.uniform(0, 1, (BOXES, 2)) * (size - sides)
    return np.concatenate([corner, corner + sides], 1).astype(np.float32), rng.integers(0, CLASSES, BOXES)


class Mosaic(Dataset):
    """Each of four pictures is cut, scaled and coloured, and has a quarter of the whole."""

    def __init__(self):
        self.pictures = torch.randint(0, 256, (64, 3, size * 3 // 2, size * 3 // 2), dtype=torch.uint8)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, number):
        rng = np.random.default_rng(number)
        whole, half = torch.empty(3, size, size), size // 2
        for quarter in range(4):
            picture = self.pictures[rng.integers(len(self.pictures))]
            side = int(picture.shape[-1] * rng.uniform(0.5, 1.0))
            y, x = rng.integers(0, picture.shape[-1] - side + 1, 2)
            part = picture[:, y : y + side, x : x + side].float()[None]
            part = F.interpolate(part, (half, half), mode="bicubic", antialias=True)[0]
            part = torch.lerp(part.mean((1, 2), keepdim=True), part, rng.uniform(0.6, 1.4)) * rng.uniform(0.7, 1.3)
            y, x = quarter // 2 * half, quarter % 2 * half
            whole[:, y : y + half, x : x + half] = part
        if rng.random() < 0.5:
            whole = F.avg_pool2d(whole[None], 3, 1, 1)[0]
        boxes, labels = boxes_of(rng)
        return whole.clamp_(0, 255).to(torch.uint8), torch.from_numpy(boxes), torch.from_numpy(labels)


def from_memory():
    """The same batches again and again. Boxes stay on the host for those who want them there."""
    rng, made = np.random.default_rng(rank), []
    for _ in range(4):
        pictures = torch.randint(0, 256, (args.batch, 3, size, size), dtype=torch.uint8)
        drawn = [boxes_of(rng) for _ in range(args.batch)]
        boxes, labels = (torch.from_numpy(np.stack([one[part] for one in drawn])) for part in (0, 1))
        batch = pictures, boxes, labels
        made.append(tuple(part.pin_memory() for part in batch) if cuda else batch)
    while True:
        yield from made


class Bottleneck(nn.Module):
    def __init__(self, inputs, inner, stride):
        super().__init__()
        self.reduce, self.norm1 = nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv, self.norm2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner)
        self.expand, self.norm3 = nn.Conv2d(inner, 4 * inner, 1, bias=False), nn.BatchNorm2d(4 * inner)
        self.skip = nn.Identity()
        if stride > 1 or inputs != 4 * inner:
            self.skip = nn.Sequential(nn.Conv2d(inputs, 4 * inner, 1, stride, bias=False), nn.BatchNorm2d(4 * inner))

    def forward(self, x):
        inner = F.relu(self.norm1(self.reduce(x)), inplace=True)
        inner = F.relu(self.norm2(self.conv(inner)), inplace=True)
        return F.relu(self.norm3(self.expand(inner)) + self.skip(x), inplace=True)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        first = args.base
        self.stem = nn.Sequential(
            nn.Conv2d(3, first, 7, 2, 3, bias=False), nn.BatchNorm2d(first), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)
        )
        self.levels, inputs = nn.ModuleList(), first
        for number, count in enumerate(args.blocks):
            inner, level = first * 2**number, []
            for block in range(count):
                level.append(Bottleneck(inputs, inner, 2 if number and block == 0 else 1))
                inputs = 4 * inner
            self.levels.append(nn.Sequential(*level))

    def forward(self, x):
        """What the last three levels make."""
        x, found = self.stem(x), []
        for level in self.levels:
            x = level(x)
            found.append(x)
        return found[1:]


def tower(channels, outputs):
    layers = []
    for _ in range(4):
        layers += [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.Conv2d(channels, outputs, 3, padding=1))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, widths = Backbone(), [4 * args.base * 2**n for n in (1, 2, 3)]
        self.across = nn.ModuleList(nn.Conv2d(width, args.channels, 1) for width in widths)
        self.smooth = nn.ModuleList(nn.Conv2d(args.channels, args.channels, 3, padding=1) for _ in widths)
        self.classes, self.sides = tower(args.channels, CLASSES), tower(args.channels, 4)

    def forward(self, pictures):
        levels = [across(x) for across, x in zip(self.across, self.body(pictures), strict=True)]
        for n in (1, 0):
            levels[n] = levels[n] + F.interpolate(levels[n + 1], scale_factor=2.0, mode="nearest")
        levels = [smooth(x) for smooth, x in zip(self.smooth, levels, strict=True)]
        classes = torch.cat([self.classes(x).flatten(2) for x in levels], 2)
        sides = torch.cat([self.sides(x).flatten(2) for x in levels], 2)
        return classes, F.softplus(sides.float()).transpose(1, 2)


def places():
    """The centre of each place of the pyramid, its stride, and how far the sides of its boxes may be."""
    found = []
    for number, stride in enumerate(STRIDES):
        line = (np.arange(size // stride, dtype=np.float32) + 0.5) * stride
        y, x = np.meshgrid(line, line, indexing="ij")
        more = [np.full(x.size, value, np.float32) for value in (stride, FAR[number], FAR[number + 1])]
        found.append(np.stack([x.ravel(), y.ravel(), *more], 1))
    return np.concatenate(found)


def assign_numpy(where, boxes, labels):
    """Of each picture, one after the other: the smallest box that a place is in, or none."""
    made_classes, made_sides = [], []
    for own, classes in zip(boxes.numpy(), labels.numpy(), strict=True):
        x, y = where[:, 0:1], where[:, 1:2]
        sides = np.stack([x - own[:, 0], y - own[:, 1], own[:, 2] - x, own[:, 3] - y], 2)
        largest = sides.max(2)
        inside = (sides.min(2) > 0) & (largest >= where[:, 3:4]) & (largest < where[:, 4:5])
        area = (own[:, 2] - own[:, 0]) * (own[:, 3] - own[:, 1])
        area = np.where(inside, area, np.inf)
        chosen = area.argmin(1)
        rows = np.arange(len(where))
        made_classes.append(np.where(np.isfinite(area[rows, chosen]), classes[chosen], CLASSES))
        made_sides.append(sides[rows, chosen] / where[:, 2:3])
    made = torch.from_numpy(np.stack(made_classes)), torch.from_numpy(np.stack(made_sides).astype(np.float32))
    return [(part.pin_memory() if cuda else part).to(device, non_blocking=True) for part in made]


def assign_device(where, boxes, labels):
    """Of all pictures at once."""
    x, y, stride, near, far = where.unbind(1)
    low, high = boxes[:, None, :, :2], boxes[:, None, :, 2:]
    centre = torch.stack([x, y], 1)[None, :, None]
    sides = torch.cat([centre - low, high - centre], 3)
    largest = sides.amax(3)
    inside = (sides.amin(3) > 0) & (largest >= near[:, None]) & (largest < far[:, None])
    area = (high - low).prod(3).expand_as(inside).masked_fill(~inside, torch.inf)
    smallest, chosen = area.min(2)
    classes = labels.gather(1, chosen).masked_fill(smallest.isinf(), CLASSES)
    return classes, sides.gather(2, chosen[:, :, None, None].expand(-1, -1, 1, 4))[:, :, 0] / stride[:, None]


def losses(classes, sides, true_classes, true_sides):
    """Focal loss of the classes, and how much of the boxes is common to both."""
    wanted = F.one_hot(true_classes, CLASSES + 1)[..., :CLASSES].transpose(1, 2).float()
    plain = F.binary_cross_entropy_with_logits(classes.float(), wanted, reduction="none")
    focal = (plain * (1 - torch.exp(-plain)).square()).sum()
    is_box = (true_classes < CLASSES).float()
    smaller, larger = torch.minimum(sides, true_sides).clamp(min=0), torch.maximum(sides, true_sides)
    common = (smaller[..., 0] + smaller[..., 2]) * (smaller[..., 1] + smaller[..., 3])
    around = (larger[..., 0] + larger[..., 2]) * (larger[..., 1] + larger[..., 3])
    return (focal + ((1 - common / around.clamp(min=1e-3)) * is_box).sum()) / is_box.sum().clamp(min=1)


torch.manual_seed(40)
with device:
    model = Detector()
model = model.to(memory_format=layout)
if world > 1:
    model = nn.parallel.DistributedDataParallel(model, device_ids=[local] if cuda else None)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9, weight_decay=1e-4, foreach=True)
torch.manual_seed(41 + rank)
loader = from_memory()
if args.mosaic:
    loader = DataLoader(Mosaic(), args.batch, num_workers=args.workers, pin_memory=cuda)
where = places()
where_device = torch.from_numpy(where).to(device)
for step, (pictures, boxes, labels) in enumerate(loader, 1):
    pictures = pictures.to(device, non_blocking=True).to(memory_format=layout).float().sub_(114).div_(58)
    if args.assign == "numpy":
        truth = assign_numpy(where, boxes, labels)
    else:
        moved = boxes.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        truth = assign_device(where_device, *moved)
    with torch.autocast(device.type, torch.bfloat16):
        found = model(pictures)
    loss = losses(*found, *truth)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.3f}", flush=True)
