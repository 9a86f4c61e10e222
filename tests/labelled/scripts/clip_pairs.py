"""Contrastive training on pairs of pictures and captions, in the manner of CLIP, on one GPU or with DDP."""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

WORDS, PATCH, SHARED, EDGE = 16_000, 16, 512, 256

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--image-layers", type=int, default=6)
parser.add_argument("--image-width", type=int, default=768)
parser.add_argument("--text-layers", type=int, default=3)
parser.add_argument("--text-width", type=int, default=512)
parser.add_argument("--size", type=int, default=224, help="of the pictures")
parser.add_argument("--length", type=int, default=76, help="of the captions")
parser.add_argument("--batch", type=int, default=256, help="pairs of each rank")
parser.add_argument("--augment", action="store_true", help="crop and colour pictures as they are loaded")
parser.add_argument("--workers", type=int, default=4, help="that do so")
parser.add_argument("--float-pictures", action="store_true", help="pictures lie in memory normalised, as fp32")
parser.add_argument("--no-pin", action="store_true")
parser.add_argument("--recompute", action="store_true", help="layers' activations in the backward pass")
parser.add_argument("--recall-every", type=int, default=0, help="steps between lines on recall, which rank 0 writes")
parser.add_argument("--out", default="out")
args = parser.parse_args()

ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
if ranks > 1:
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
pinned = device.type == "cuda" and not args.no_pin


class Pairs(Dataset):
    """Pictures that lie decoded in memory, each cropped, flipped and coloured anew."""

    def __init__(self):
        self.pictures = torch.randint(0, 256, (256, 3, EDGE, EDGE), dtype=torch.uint8)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, number):
        rng = np.random.default_rng(number)
        side = int(EDGE * rng.uniform(0.5, 1.0))
        y, x = rng.integers(0, EDGE - side + 1, 2)
        crop = self.pictures[number % len(self.pictures), :, y : y + side, x : x + side].float()
        picture = F.interpolate(crop[None], (args.size, args.size), mode="bicubic", antialias=True)[0]
        if rng.random() < 0.5:
            picture = picture.flip(-1)
        picture = picture * rng.uniform(0.7, 1.3)
        picture = torch.lerp(picture.mean().expand_as(picture), picture, rng.uniform(0.7, 1.3))
        picture = torch.lerp(picture.mean(0, keepdim=True).expand_as(picture), picture, rng.uniform(0.7, 1.3))
        caption = torch.from_numpy(rng.integers(0, WORDS, args.length))
        return picture.clamp_(0, 255).to(torch.uint8), caption


class Layer(nn.Module):
    def __init__(self, width, causal):
        super().__init__()
        self.heads, self.causal = max(1, width // 64), causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Tower(nn.Module):
    def __init__(self, first, places, width, layers, causal):
        super().__init__()
        self.first, self.places = first, nn.Parameter(torch.randn(places, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, causal) for _ in range(layers))
        self.norm, self.project = nn.LayerNorm(width), nn.Linear(width, SHARED, bias=False)

    def forward(self, inputs):
        x = self.first(inputs)
        x = (x.flatten(2).transpose(1, 2) if x.dim() == 4 else x) + self.places
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if args.recompute else layer(x)
        x = x[:, -1] if layer.causal else x.mean(1)
        return F.normalize(self.project(self.norm(x)).float(), dim=-1)


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        wide, text = args.image_width, args.text_width
        patches = nn.Conv2d(3, wide, PATCH, PATCH)
        self.image = Tower(patches, (args.size // PATCH) ** 2, wide, args.image_layers, causal=False)
        self.text = Tower(nn.Embedding(WORDS, text), args.length, text, args.text_layers, causal=True)
        self.scale = nn.Parameter(torch.tensor(2.66))

    def forward(self, pictures, captions):
        return self.image(pictures), self.text(captions), self.scale.clamp(max=4.6).exp()


def from_memory():
    """The same four batches, again and again."""
    made = []
    for _ in range(4):
        pictures = torch.randint(0, 256, (args.batch, 3, args.size, args.size), dtype=torch.uint8)
        if args.float_pictures:
            pictures = pictures.float().sub_(127.5).div_(58.0)
        batch = pictures, torch.randint(0, WORDS, (args.batch, args.length))
        made.append([part.pin_memory() for part in batch] if pinned else batch)
    while True:
        yield from made


def of_all_ranks(features):
    """Those of the others carry no gradient."""
    if ranks == 1:
        return features
    found = [torch.empty_like(features) for _ in range(ranks)]
    dist.all_gather(found, features.detach())
    found[rank] = features
    return torch.cat(found)


def write_recall(step, images, texts):
    """How often a picture finds its own caption among the first of all, and a caption its picture."""
    scores, line = images.detach().cpu().numpy() @ texts.detach().cpu().numpy().T, {"step": step}
    for name, table in (("captions", scores), ("pictures", scores.T)):
        order = np.argsort(-table, axis=1)
        place = np.argmax(order == np.arange(len(order))[:, None], axis=1)
        line |= {f"{name}@{k}": float((place < k).mean()) for k in (1, 5, 10)}
    with Path(args.out, "recall.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


torch.manual_seed(11)
with device:
    model = Clip()
if ranks > 1:
    model = nn.parallel.DistributedDataParallel(model, device_ids=[local] if device.type == "cuda" else None)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.1, fused=True)
torch.manual_seed(12 + rank)
loader = DataLoader(Pairs(), args.batch, num_workers=args.workers, pin_memory=pinned) if args.augment else from_memory()
truth = torch.arange(args.batch, device=device) + rank * args.batch
Path(args.out).mkdir(parents=True, exist_ok=True)
for step, (pictures, captions) in enumerate(loader, 1):
    pictures, captions = pictures.to(device, non_blocking=pinned), captions.to(device, non_blocking=pinned)
    if pictures.dtype == torch.uint8:
        pictures = pictures.float().sub_(127.5).div_(58.0)
    with torch.autocast(device.type, torch.bfloat16):
        images, texts, scale = model(pictures, captions)
    every_image, every_text = of_all_ranks(images), of_all_ranks(texts)
    found = F.cross_entropy(scale * images @ every_text.T, truth), F.cross_entropy(scale * texts @ every_image.T, truth)
    loss = sum(found) / 2
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if args.recall_every and rank == 0 and step % args.recall_every == 0:
        write_recall(step, every_image, every_text)
    if step % 100 == 0:
        print(f"{step}: {loss.item():.4f}", flush=True)
