"""Learns shapes as how far each place is from their surface (as DeepSDF): a network that all shapes share sees the
place and the shape's own code, and both are learned. A batch may be split into chunks, whose gradients are added up."""

import argparse
import itertools

import torch
from torch import nn

NEAR = 0.1


class Decoder(nn.Module):
    """Half-way, it sees its input again."""

    def __init__(self, args):
        super().__init__()
        enter, width = args.code + 3, args.width
        half = args.layers // 2
        sizes = [enter, *[width] * (half - 1)]
        self.first = self.stack([*sizes, width - enter])
        self.second = self.stack([*[width] * (args.layers - half + 1)])
        self.last = nn.Linear(width, 1)

    @staticmethod
    def stack(sizes):
        parts = []
        for enter, leave in itertools.pairwise(sizes):
            parts += [nn.Linear(enter, leave), nn.ReLU()]
        return nn.Sequential(*parts)

    def forward(self, codes, places):
        x = torch.cat([codes, places], dim=1)
        return self.last(self.second(torch.cat([self.first(x), x], dim=1))).squeeze(1)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1871)
    model, codes = Decoder(args).to(device), nn.Embedding(args.shapes, args.code).to(device)
    nn.init.normal_(codes.weight, std=args.code**-0.5)
    optimizer = torch.optim.Adam(
        [{"params": model.parameters(), "lr": args.lr}, {"params": codes.parameters(), "lr": 2 * args.lr}], fused=True
    )
    batches = []
    for _ in range(3):
        shapes = torch.randperm(args.shapes, device=device)[: args.batch].repeat_interleave(args.places)
        places = 2 * torch.rand(len(shapes), 3, device=device) - 1
        batches.append((shapes, places, (places.norm(dim=1) - 0.5 - 0.001 * (shapes % 64)).clamp(-NEAR, NEAR)))
    for step in range(1, 10_000_000):
        batch, total = batches[step % len(batches)], 0.0
        optimizer.zero_grad(set_to_none=True)
        for shapes, places, far in zip(*(part.chunk(args.batch_split) for part in batch), strict=True):
            own = codes(shapes)
            with torch.autocast(device.type, torch.bfloat16):
                told = model(own, places)
            loss = (told.float().clamp(-NEAR, NEAR) - far).abs().sum()
            loss = (loss + 1e-4 * own.square().sum()) / len(batch[0])
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {total.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=64, help="shapes of a step")
    parser.add_argument("--places", type=int, default=16_384, help="of each shape")
    parser.add_argument("--batch-split", type=int, default=1, help="chunks of a batch")
    parser.add_argument("--code", type=int, default=253, help="numbers that tell a shape")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
