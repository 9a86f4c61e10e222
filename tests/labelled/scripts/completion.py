"""Completes things of which a scanner saw one side only: tokens are made around some points of the cloud that lie far
from each other, a transformer thinks about them, and each becomes a few points of the whole. The two clouds are
compared by how far each point is from the next one of the other (chamfer distance)."""

import argparse
import itertools

import torch
from torch import nn


def farthest(clouds, count):
    """Places of points, each as far as possible from those before; the first is that of the first point."""
    clouds_at = torch.arange(len(clouds), device=clouds.device)
    last = torch.zeros(len(clouds), dtype=torch.long, device=clouds.device)
    far, found = torch.full(clouds.shape[:2], torch.inf, device=clouds.device), [last]
    for _ in range(count - 1):
        apart = (clouds - clouds[clouds_at, last][:, None]).square().sum(2)
        far = torch.minimum(far, apart)
        last = far.argmax(1)
        found.append(last)
    return torch.stack(found, dim=1)


def distances(a, b, how):
    """Squared, of all pairs of points."""
    if how == "differences":
        return (a[:, :, None] - b[:, None]).pow(2).sum(3)
    squares = a.square().sum(2)[:, :, None] + b.square().sum(2)[:, None]
    return torch.baddbmm(squares, a, b.transpose(1, 2), alpha=-2)


def chamfer(a, b, how):
    apart = distances(a, b, how)
    return apart.min(2).values.mean() + apart.min(1).values.mean()


class Completer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.near = nn.Sequential(nn.Linear(3, 128), nn.GELU(), nn.Linear(128, args.width))
        self.place = nn.Sequential(nn.Linear(3, args.width), nn.GELU(), nn.Linear(args.width, args.width))
        layer = nn.TransformerEncoderLayer(
            args.width, args.width // 64, 4 * args.width, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.body = nn.TransformerEncoder(layer, args.layers, norm=nn.LayerNorm(args.width), enable_nested_tensor=False)
        self.leave = nn.Linear(args.width, 3 * args.each)

    def centres(self, clouds):
        if self.args.centres == "each":
            return torch.cat([farthest(cloud[None], self.args.tokens) for cloud in clouds])
        return farthest(clouds, self.args.tokens)

    def forward(self, clouds):
        with torch.no_grad():
            chosen = self.centres(clouds) if self.args.centres != "first" else None
            if chosen is None:
                centres = clouds[:, : self.args.tokens]
            else:
                centres = clouds.gather(1, chosen[..., None].expand(-1, -1, 3))
            nearest = torch.cdist(centres, clouds).topk(self.args.near, largest=False).indices
            samples = torch.arange(len(clouds), device=clouds.device)[:, None, None]
            groups = clouds[samples, nearest] - centres[:, :, None]
        x = self.near(groups).amax(2) + self.place(centres)
        moved = self.leave(self.body(x)).float().unflatten(2, (-1, 3))
        return (centres[:, :, None] + moved).flatten(1, 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=2048, help="that were seen")
    parser.add_argument("--whole", type=int, default=4096, help="points of the whole")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--near", type=int, default=16, help="points around a centre")
    parser.add_argument("--each", type=int, default=4, help="points that a token becomes")
    parser.add_argument(
        "--centres", choices=["first", "each", "joint"], default="first",
        help="the first points, for clouds are mixed; or such as lie far apart: cloud by cloud, or of all at once",
    )  # fmt: skip
    parser.add_argument("--apart", choices=["differences", "products"], default="products", help="distances by which")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2131)
    model = Completer(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
    whole = [torch.rand(args.batch, args.whole, 3, device=device) for _ in range(3)]
    seen = [clouds[:, : args.points].contiguous() for clouds in whole]
    for step, (clouds, wanted) in enumerate(itertools.cycle(zip(seen, whole, strict=True)), 1):
        with torch.autocast(device.type, torch.bfloat16):
            made = model(clouds)
        loss = chamfer(made, wanted, args.apart)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
