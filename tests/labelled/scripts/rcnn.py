"""Trains torchvision's Faster R-CNN, or with masks Mask R-CNN, on pictures of different sizes with outlined objects."""

import argparse

import numpy as np
import torch
import torchvision
from PIL import Image, ImageDraw
from torch.utils.data import DataLoader, Dataset

CLASSES, SIZES = 91, [(480, 640), (640, 480), (512, 640), (448, 640)]


class Scenes(Dataset):
    """Pictures with objects, each outlined by a polygon of many corners, as annotations are."""

    def __init__(self, objects, corners, masks, scale):
        self.objects, self.corners, self.masks = objects, corners, masks
        self.sizes = [(int(height * scale), int(width * scale)) for height, width in SIZES]
        rng = np.random.default_rng(0)
        self.pictures = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in self.sizes for _ in range(4)]

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        picture = self.pictures[index % len(self.pictures)]
        height, width = picture.shape[:2]
        angles = np.linspace(0, 2 * np.pi, self.corners, endpoint=False)
        boxes, masks = [], []
        for _ in range(self.objects):
            centre, radius = rng.uniform(0, 1, 2) * (width, height), rng.uniform(0.05, 0.25) * width
            outline = centre + radius * rng.uniform(0.7, 1, (self.corners, 1)) * np.stack(
                [np.cos(angles), np.sin(angles)], 1
            )
            outline = outline.clip(0, (width - 1, height - 1))
            boxes.append(np.concatenate([outline.min(0), outline.max(0)]))
            if self.masks:
                mask = Image.new("1", (width, height))
                ImageDraw.Draw(mask).polygon([tuple(corner) for corner in outline], fill=1)
                masks.append(np.array(mask, dtype=np.uint8))
        target = {
            "boxes": torch.tensor(np.array(boxes), dtype=torch.float32),
            "labels": torch.from_numpy(rng.integers(1, CLASSES, self.objects)),
        }
        if self.masks:
            target["masks"] = torch.from_numpy(np.stack(masks))
        return torch.from_numpy(picture).permute(2, 0, 1).float() / 255, target


def collate(samples):
    return tuple(zip(*samples, strict=True))


def without_slivers(target, least=2.0):
    """Only objects that are some pixels wide and high."""
    boxes = target["boxes"]
    kept = [n for n, box in enumerate(boxes) if box[2] - box[0] >= least and box[3] - box[1] >= least]
    return {name: value[kept] for name, value in target.items()}


def main(args):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(170)
    edge = max(32, int(512 * args.scale))
    model = torchvision.models.get_model(
        "maskrcnn_resnet50_fpn" if args.masks else "fasterrcnn_resnet50_fpn", weights=None, weights_backbone=None,
        num_classes=CLASSES, min_size=edge, max_size=2 * edge,
    )  # fmt: skip
    model = model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9, weight_decay=1e-4, fused=True)
    data = Scenes(args.objects, args.corners, args.masks, args.scale)
    loader = DataLoader(
        data, args.batch, num_workers=args.workers, collate_fn=collate, pin_memory=cuda, drop_last=True,
        persistent_workers=args.workers > 0,
    )  # fmt: skip
    step = 0
    while True:
        for images, targets in loader:
            if args.filter == "loaded":
                targets = [without_slivers(target) for target in targets]
            images = [image.to(device, non_blocking=True) for image in images]
            targets = [{name: value.to(device, non_blocking=True) for name, value in own.items()} for own in targets]
            if args.filter == "moved":
                targets = [without_slivers(target) for target in targets]
            with torch.autocast(device.type, torch.bfloat16):
                losses = model(images, targets)
            loss = sum(losses.values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--masks", action="store_true")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--objects", type=int, default=24, help="of a picture")
    parser.add_argument("--corners", type=int, default=64, help="of an outline")
    parser.add_argument("--scale", type=float, default=1.0, help="of pictures")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--filter", choices=["loaded", "moved"], default="loaded", help="objects, once they are so")
    main(parser.parse_args())
