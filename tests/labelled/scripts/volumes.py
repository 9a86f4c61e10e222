"""Segments organs in scans with a 3D U-Net; patches are cut from volumes that lie on disk as one array."""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SCANS, EDGE = 6, 144


class Patches(torch.utils.data.Dataset):
    """Random patches of the scans, turned, scaled, bent and noisy."""

    def __init__(self, path, opt):
        self.path, self.opt, self.array = path, opt, None

    def __len__(self):
        return 1_000_000

    def warp(self, image, truth, rng):
        """Turn about an axis, scale and bend."""
        n, angle, scale = self.opt.crop, rng.uniform(-0.4, 0.4), rng.uniform(0.9, 1.1)
        c, s = scale * np.cos(angle), scale * np.sin(angle)
        matrix = torch.tensor([[[c, -s, 0, 0], [s, c, 0, 0], [0, 0, scale, 0]]], dtype=torch.float32)
        grid = F.affine_grid(matrix, (1, 1, n, n, n), align_corners=False)
        coarse = torch.from_numpy(rng.normal(0, 0.03, (1, 3, 6, 6, 6)).astype(np.float32))
        grid += F.interpolate(coarse, size=(n, n, n), mode="trilinear").permute(0, 2, 3, 4, 1)
        image = F.grid_sample(image[None], grid, align_corners=False, padding_mode="reflection")[0]
        truth = F.grid_sample(truth[None, None].float(), grid, mode="nearest", align_corners=False)[0, 0]
        return image, truth.to(torch.uint8)

    def __getitem__(self, number):
        if self.array is None:
            self.array = np.load(self.path, mmap_mode="r")
        rng, n = np.random.default_rng(number), self.opt.crop
        scan, (z, y, x) = rng.integers(SCANS), rng.integers(0, EDGE - n + 1, 3)
        raw = np.array(self.array[scan, z : z + n, y : y + n, x : x + n])
        image = torch.from_numpy(raw.astype(np.float32))[None].expand(self.opt.channels, -1, -1, -1) / 1000
        truth = torch.from_numpy((raw.clip(0, 999).astype(np.int32) * self.opt.classes // 1000).astype(np.uint8))
        if self.opt.augment:
            image, truth = self.warp(image, truth, rng)
            image = image.sign() * image.abs() ** rng.uniform(0.8, 1.2)
            image = image + torch.from_numpy(rng.normal(0, 0.05, image.shape).astype(np.float32))
        return image.contiguous(), truth


def conv(inputs, outputs):
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs, affine=True), nn.LeakyReLU(inplace=True)
    )


class UNet(nn.Module):
    def __init__(self, channels, classes, base, depth=3):
        super().__init__()
        sizes = [base * 2**n for n in range(depth + 1)]
        self.down, self.up, self.grow = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for n, size in enumerate(sizes):
            self.down.append(nn.Sequential(conv(sizes[n - 1] if n else channels, size), conv(size, size)))
        for size in sizes[-2::-1]:
            self.grow.append(nn.ConvTranspose3d(2 * size, size, 2, stride=2))
            self.up.append(nn.Sequential(conv(2 * size, size), conv(size, size)))
        self.head = nn.Conv3d(base, classes, 1)

    def forward(self, x):
        skips = []
        for n, block in enumerate(self.down):
            x = block(F.max_pool3d(x, 2) if n else x)
            skips.append(x)
        skips.pop()
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat((grow(x), skips.pop()), 1))
        return self.head(x)


def dice_loss(logits, truth):
    shares = logits.softmax(1)
    inside = shares.gather(1, truth[:, None]).sum()
    return 1 - 2 * inside / (shares.sum() + truth.numel())


class Training:
    def __init__(self, opt):
        self.opt = opt
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = opt.precision != "exact"
        torch.manual_seed(7)
        self.net = UNet(opt.channels, opt.classes, opt.base).to(self.device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
        self.scores = []

    def batches(self):
        path = Path(self.opt.out, "scans.npy")
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.random.default_rng(0).integers(-200, 1200, (SCANS, EDGE, EDGE, EDGE), dtype=np.int16))
        pin = not self.opt.no_pin and self.device.type == "cuda"
        loader = torch.utils.data.DataLoader(
            Patches(path, self.opt), self.opt.batch, num_workers=self.opt.workers, pin_memory=pin
        )
        if not self.opt.cache:
            yield from loader
        kept = [batch for batch, _ in zip(loader, range(self.opt.cache), strict=False)]
        while True:
            yield from kept

    def dice(self, logits, truth):
        """Overlap of each organ: numbers, or tensors that become numbers when they are printed."""
        guess, scores = logits.argmax(1), []
        for organ in range(self.opt.classes):
            a, b = guess == organ, truth == organ
            parts = [(a & b).sum(), a.sum(), b.sum()]
            if self.opt.dice == "each":
                both, first, second = (part.item() for part in parts)
                scores.append(2 * both / max(first + second, 1))
            else:
                scores.append(2 * parts[0] / (parts[1] + parts[2]).clamp(min=1))
        self.scores = scores

    def step(self, image, truth):
        image = image.to(self.device, non_blocking=not self.opt.no_pin)
        truth = truth.to(self.device, non_blocking=not self.opt.no_pin).long()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.opt.precision == "bf16"):
            logits = self.net(image)
        logits = logits.float()
        loss = F.cross_entropy(logits, truth) + dice_loss(logits, truth)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 12.0)
        self.optimizer.step()
        if self.opt.dice:
            self.dice(logits.detach(), truth)
        return loss.detach()

    def run(self):
        for number, batch in enumerate(self.batches(), 1):
            loss = self.step(*batch)
            if self.opt.release and self.device.type == "cuda":
                torch.cuda.empty_cache()  # patches of the viewer's server are predicted on this card, too
            if number % 100 == 0:
                print(f"{number} loss {loss:.4f}", " ".join(f"{float(score):.3f}" for score in self.scores))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--base", type=int, default=32)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--crop", type=int, default=96)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--augment", action="store_true")
    parser.add_argument("--cache", type=int, default=0, help="number of batches to keep, and to use alone")
    parser.add_argument("--no-pin", action="store_true")
    parser.add_argument("--precision", choices=["exact", "tf32", "bf16"], default="bf16")
    parser.add_argument("--dice", choices=["each", "late"])
    parser.add_argument("--release", action="store_true")
    parser.add_argument("--out", default="out")
    Training(parser.parse_args()).run()
