"""Names plankton under a microscope: a RegNet of torchvision learns from a folder of pictures, of which those that it
got wrong lately come more often."""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.models import get_model


class Pictures(Dataset):
    def __init__(self, args):
        self.args, folder = args, Path(args.folder) / "train"
        self.kinds = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.rows = [(path, n) for n, kind in enumerate(self.kinds) for path in sorted((folder / kind).glob("*.jpg"))]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        path, kind = self.rows[index]
        draw = np.random.default_rng()
        picture = Image.open(path).convert("RGB")
        if self.args.turn == "loader":
            picture = picture.rotate(draw.uniform(0, 360), Image.Resampling.BICUBIC, expand=True)
        edge = draw.uniform(0.6, 1.0) * min(picture.size)
        left, top = (draw.uniform(0, side - edge) for side in picture.size)
        box = (left, top, left + edge, top + edge)
        picture = picture.resize((self.args.size, self.args.size), Image.Resampling.BILINEAR, box=box)
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1), kind, index


class Draws:
    """Batches of pictures, the worse they are known the more often."""

    def __init__(self, loss_of, args):
        self.loss_of, self.args = loss_of, args

    def batch(self):
        chance = self.loss_of + 0.05
        if self.args.draw == "joint":
            return torch.multinomial(chance, self.args.batch).tolist()
        drawn = []
        for _ in range(self.args.batch):
            drawn.append(torch.multinomial(chance, 1).item())
            chance[drawn[-1]] = 0
        return drawn

    def __len__(self):
        return max(1, self.args.round // self.args.batch) if self.args.rounds == "apart" else 1_000_000

    def __iter__(self):
        for _ in range(len(self)):
            yield self.batch()


def turned(pictures):
    """Each picture by another angle."""
    angle = 2 * torch.pi * torch.rand(len(pictures), device=pictures.device)
    cos, sin, zero = torch.cos(angle), torch.sin(angle), torch.zeros_like(angle)
    ways = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
    return F.grid_sample(pictures, F.affine_grid(ways, list(pictures.shape), align_corners=False), align_corners=False)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(2201)
    data = Pictures(args)
    model = get_model(args.model, weights=None, num_classes=len(data.kinds))
    model = model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=5e-5, fused=True)
    loss_of = torch.full((len(data),), 3.0, device=device)
    loader = DataLoader(
        data, batch_sampler=Draws(loss_of, args), num_workers=args.workers, pin_memory=device.type == "cuda"
    )
    step = 0
    for _ in range(1_000_000):
        for pictures, kinds, rows in loader:
            step += 1
            pictures, kinds, rows = (part.to(device, non_blocking=True) for part in (pictures, kinds, rows))
            pictures = pictures.to(memory_format=torch.channels_last).float().div_(127.5).sub_(1)
            if args.turn == "device":
                pictures = turned(pictures)
            with torch.autocast(device.type, torch.bfloat16):
                scores = model(pictures.contiguous(memory_format=torch.channels_last))
            losses = F.cross_entropy(scores.float(), kinds, reduction="none", label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            losses.mean().backward()
            optimizer.step()
            loss_of.index_copy_(0, rows, losses.detach())
            if step % args.print_every == 0:
                print(f"step {step}: loss {losses.mean().item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--model", default="regnet_y_3_2gf")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--turn", choices=["loader", "device", "never"], default="device", help="where pictures turn")
    parser.add_argument("--draw", choices=["each", "joint"], default="joint", help="pictures of a batch")
    parser.add_argument("--rounds", choices=["apart", "endless"], default="endless")
    parser.add_argument("--round", type=int, default=3000, help="pictures of a round, where they are apart")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
