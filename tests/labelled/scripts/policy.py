"""Teaches a robot by what people showed it (behaviour cloning): a vision transformer sees what its cameras see now and
saw before, and together with where its joints are this tells the next moves (a chunk of actions)."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CAMERAS, FRAMES, JOINTS, AHEAD, PATCH = 4, 2, 14, 16, 16


class Moments:
    """A batch of what was seen and done."""

    def __init__(self, views, joints, moves):
        self.views, self.joints, self.moves = views, joints, moves

    def parts(self):
        return {"views": self.views, "joints": self.joints, "moves": self.moves}


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


class Policy(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.joint = args.cameras == "joint"
        tokens = args.size[0] // PATCH * (args.size[1] // PATCH)
        self.enter = nn.Linear(3 * PATCH**2, args.width)
        self.places = nn.Parameter(torch.randn(tokens, args.width) * 0.02)
        self.layers = nn.Sequential(*(Layer(args.width) for _ in range(args.layers)))
        self.norm = nn.LayerNorm(args.width)
        self.act = nn.Sequential(
            nn.Linear(CAMERAS * FRAMES * args.width + JOINTS, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(),
            nn.Linear(2048, AHEAD * JOINTS),
        )  # fmt: skip

    def seen(self, pictures):
        """Pictures are numbers from 0 to 255, colours last."""
        x = pictures.unflatten(2, (-1, PATCH)).unflatten(1, (-1, PATCH)).permute(0, 1, 3, 2, 4, 5)
        x = self.enter(x.flatten(3).flatten(1, 2).to(torch.bfloat16) / 128 - 1)
        return self.norm(self.layers(x + self.places)).mean(1)

    def forward(self, views, joints):
        if self.joint:
            seen = self.seen(views.flatten(0, 1)).unflatten(0, views.shape[:2]).flatten(1)
        else:
            seen = torch.cat([self.seen(view) for view in views.unbind(1)], 1)
        return self.act(torch.cat([seen, joints.to(seen.dtype)], 1)).unflatten(1, (AHEAD, JOINTS))


class Shown(Dataset):
    """What people showed, kept in memory as cameras took it."""

    def __init__(self, args):
        rng = np.random.default_rng(760)
        moments = args.moments
        self.views = rng.integers(0, 256, (moments, CAMERAS, *args.size, 3), dtype=np.uint8)
        self.joints = rng.standard_normal((moments, JOINTS), dtype=np.float32)

    def __len__(self):
        return 10_000_000

    def __getitem__(self, place):
        now = np.random.default_rng(place).integers(FRAMES - 1, len(self.views) - AHEAD)
        views = self.views[now - FRAMES + 1 : now + 1].reshape(-1, *self.views.shape[2:])
        moves = self.joints[now + 1 : now + 1 + AHEAD] - self.joints[now]
        return torch.from_numpy(views), torch.from_numpy(self.joints[now]), torch.from_numpy(moves)


def put_together(items):
    return Moments(*(torch.stack(part) for part in zip(*items, strict=True)))


def put_in_dict(items):
    return put_together(items).parts()


def batches(args, device):
    shown = Shown(args)
    if not args.workers:
        picked = [put_together([shown[args.batch * some + item] for item in range(args.batch)]) for some in range(3)]
        kept = [{name: part.to(device) for name, part in batch.parts().items()} for batch in picked]
        while True:
            yield from kept
    loader = DataLoader(
        shown, args.batch, num_workers=args.workers, pin_memory=device.type == "cuda",
        collate_fn=put_together if args.batch_as == "object" else put_in_dict,
    )  # fmt: skip
    for batch in loader:
        parts = batch.parts() if isinstance(batch, Moments) else batch
        yield {name: part.to(device, non_blocking=True) for name, part in parts.items()}


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(761)
    with device:
        model = Policy(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    for step, batch in enumerate(batches(args, device), 1):
        with torch.autocast(device.type, torch.bfloat16):
            moves = model(batch["views"], batch["joints"])
        loss = F.l1_loss(moves.float(), batch["moves"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, nargs=2, default=[240, 320], help="of a camera's picture, in pixels")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32, help="moments")
    parser.add_argument("--moments", type=int, default=1000, help="that people showed")
    parser.add_argument("--cameras", choices=["each", "joint"], default="joint", help="how their pictures are seen")
    parser.add_argument("--workers", type=int, default=0, help="that look moments up; 0: few batches on the device")
    parser.add_argument("--batch-as", choices=["object", "dict"], default="dict", help="that workers make")
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
