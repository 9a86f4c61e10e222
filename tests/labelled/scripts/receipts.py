"""Finds what is what on scanned receipts and forms (as LayoutLM), with Accelerate: a transformer reads words together
with the boxes in which they stand on the page, and says for each word to which field it belongs."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 1000  # units that a page is wide, and as many high


class Pages(Dataset):
    """Words as a scanner gave them: boxes are in pixels of the page, and pages differ in size."""

    def __init__(self, args):
        rng = np.random.default_rng(2101)
        self.joint, pages = args.boxes == "joint", 256
        self.words = rng.integers(args.vocabulary, size=(pages, args.words))
        self.fields = rng.integers(args.fields, size=(pages, args.words))
        self.sizes = rng.integers(1200, 3600, size=(pages, 2)).astype(np.float32)
        corner = rng.random((pages, args.words, 2), dtype=np.float32) * 0.9
        far = corner + 0.1 * rng.random((pages, args.words, 2), dtype=np.float32)
        self.boxes = np.concatenate([corner, far], axis=2) * np.tile(self.sizes, 2)[:, None]
        self.lists = [] if self.joint else [page.tolist() for page in self.boxes]

    def __len__(self):
        return 1_000_000

    def normalised(self, page):
        sizes = self.sizes[page]
        if self.joint:
            return torch.from_numpy((SIDE * self.boxes[page] / np.tile(sizes, 2)).clip(0, SIDE).astype(np.int64))
        width, height = (float(size) for size in sizes)
        boxes = []
        for x0, y0, x1, y1 in self.lists[page]:
            box = [SIDE * x0 / width, SIDE * y0 / height, SIDE * x1 / width, SIDE * y1 / height]
            boxes.append(torch.tensor([int(min(max(value, 0), SIDE)) for value in box]))
        return torch.stack(boxes)

    def __getitem__(self, number):
        page = number % len(self.words)
        return {
            "words": torch.from_numpy(self.words[page]),
            "boxes": self.normalised(page),
            "fields": torch.from_numpy(self.fields[page]),
        }


class LayoutReader(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.words = nn.Embedding(args.vocabulary, args.width)
        self.order = nn.Parameter(0.02 * torch.randn(args.words, args.width))
        self.across, self.down, self.wide, self.high = (nn.Embedding(SIDE + 1, args.width) for _ in range(4))
        self.norm = nn.LayerNorm(args.width)
        layer = nn.TransformerEncoderLayer(
            args.width, args.width // 64, 4 * args.width, dropout=0.0, activation="gelu", batch_first=True
        )
        self.body = nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False)
        self.head = nn.Linear(args.width, args.fields)

    def forward(self, words, boxes):
        x0, y0, x1, y1 = boxes.unbind(2)
        x = self.words(words) + self.order
        x = x + self.across(x0) + self.across(x1) + self.down(y0) + self.down(y1)
        x = x + self.wide((x1 - x0).clamp(min=0)) + self.high((y1 - y0).clamp(min=0))
        return self.head(self.body(self.norm(x)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=512, help="of a page")
    parser.add_argument("--vocabulary", type=int, default=30_522)
    parser.add_argument("--fields", type=int, default=13)
    parser.add_argument("--boxes", choices=["each", "joint"], default="joint", help="word by word, or of a page")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--lr", type=float, default=5e-5)
    args = parser.parse_args()

    accelerator = Accelerator(mixed_precision="bf16")
    torch.manual_seed(2102)
    model = LayoutReader(args)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 100_000)
    pin = accelerator.device.type == "cuda"
    loader = DataLoader(Pages(args), args.batch, num_workers=args.workers, pin_memory=pin)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for step, batch in enumerate(loader, 1):
        scores = model(batch["words"], batch["boxes"])
        loss = F.cross_entropy(scores.flatten(0, 1), batch["fields"].flatten())
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            accelerator.print(f"step {step}: loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
