"""Sharpens pictures (super-resolution): a residual network without pooling makes pictures of twice the size or more."""

import argparse
from io import BytesIO

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

HEIGHT, WIDTH = 1356, 2040


class Norm(nn.Module):
    """Over the channels, pixel by pixel."""

    def __init__(self, width, memory):
        super().__init__()
        self.memory = memory
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
            x = F.layer_norm(x.permute(0, 2, 3, 1), weight.shape, weight, bias)
        return x.permute(0, 3, 1, 2).contiguous(memory_format=self.memory)


class Block(nn.Module):
    def __init__(self, width, memory):
        super().__init__()
        self.norm = Norm(width, memory)
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x):
        return x + self.second(F.gelu(self.first(self.norm(x))))


class Sharpener(nn.Module):
    def __init__(self, args, memory):
        super().__init__()
        self.scale = args.scale
        self.head = nn.Conv2d(3, args.width, 3, padding=1)
        self.body = nn.Sequential(*(Block(args.width, memory) for _ in range(args.blocks)))
        self.tail = nn.Conv2d(args.width, 3 * args.scale**2, 3, padding=1)

    def forward(self, pictures):
        return F.pixel_shuffle(self.tail(self.body(self.head(pictures))), self.scale)


class Patches(Dataset):
    """Cut from photographs, anew each time. They are few: what matters here is the work, not what is learnt."""

    def __init__(self, args):
        rng = np.random.default_rng(290)
        self.args, self.side = args, args.patch * args.scale
        coarse = rng.integers(0, 256, (args.photographs, HEIGHT // 12, WIDTH // 12, 3), dtype=np.uint8)
        photographs = [np.asarray(Image.fromarray(one).resize((WIDTH, HEIGHT), Image.BICUBIC)) for one in coarse]
        self.photographs = [self.packed(one) for one in photographs] if args.stored == "png" else photographs

    @staticmethod
    def packed(photograph):
        file = BytesIO()
        Image.fromarray(photograph).save(file, "PNG", compress_level=1)
        return file.getvalue()

    def __len__(self):
        return 1_000_000

    def __getitem__(self, place):
        rng = np.random.default_rng(place)
        photograph = self.photographs[rng.integers(len(self.photographs))]
        if self.args.stored == "png":
            photograph = np.asarray(Image.open(BytesIO(photograph)).convert("RGB"))
        y, x = rng.integers(HEIGHT - self.side), rng.integers(WIDTH - self.side)
        return torch.from_numpy(photograph[y : y + self.side, x : x + self.side].copy()).permute(2, 0, 1)


def main(args):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(291)
    memory = torch.channels_last if args.channels_last else torch.contiguous_format
    model = Sharpener(args, memory).to(device, memory_format=memory)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    loader = DataLoader(
        Patches(args), args.batch, num_workers=args.workers, pin_memory=cuda, persistent_workers=args.workers > 0
    )
    for step, sharp in enumerate(loader, 1):
        sharp = sharp.to(device, non_blocking=True).contiguous(memory_format=memory) / 255
        blurred = F.avg_pool2d(sharp, args.scale)
        with torch.autocast(device.type, torch.bfloat16):
            found = model(blurred - 0.5)
        loss = F.l1_loss(found.float(), sharp - 0.5)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--scale", type=int, default=2, help="by which pictures grow")
    parser.add_argument("--patch", type=int, default=64, help="side of what is made sharper, in pixels")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--photographs", type=int, default=6)
    parser.add_argument("--stored", choices=["arrays", "png"], default="arrays", help="how photographs are kept")
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--channels-last", action="store_true")
    main(parser.parse_args())
