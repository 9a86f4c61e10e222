"""Predicts how far apart the residues of a protein are: every pair of residues has features, which triangles of
residues update (as in AlphaFold, without its attention), and from which a histogram of distances is predicted."""

import argparse
import contextlib

import torch
import torch.nn.functional as F
from torch import nn

KINDS, BINS, REACH = 21, 64, 32


class Triangles(nn.Module):
    """The pair of two residues learns from the pairs of both with a third one."""

    def __init__(self, width, outgoing, precision):
        super().__init__()
        self.sums = "bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc"
        self.precision = getattr(torch, precision)
        self.norm, self.inner = nn.LayerNorm(width), nn.LayerNorm(width)
        self.enter, self.gates = nn.Linear(width, 2 * width), nn.Linear(width, 3 * width)
        self.leave = nn.Linear(width, width)

    def forward(self, pairs):
        x = self.norm(pairs)
        first, second, last = self.gates(x).sigmoid().chunk(3, -1)
        one, two = self.enter(x).chunk(2, -1)
        one, two = (one * first).to(self.precision), (two * second).to(self.precision)
        with torch.autocast(x.device.type, enabled=False):
            found = torch.einsum(self.sums, one, two) / x.shape[1] ** 0.5
        return self.leave(self.inner(found)) * last


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.outgoing = Triangles(args.width, True, args.triangles)
        self.incoming = Triangles(args.width, False, args.triangles)
        self.norm = nn.LayerNorm(args.width)
        self.up, self.down = nn.Linear(args.width, 4 * args.width), nn.Linear(4 * args.width, args.width)

    def forward(self, pairs):
        pairs = pairs + self.outgoing(pairs)
        pairs = pairs + self.incoming(pairs)
        return pairs + self.down(F.relu(self.up(self.norm(pairs))))


class Folder(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.left, self.right = nn.Embedding(KINDS, args.width), nn.Embedding(KINDS, args.width)
        self.apart = nn.Parameter(torch.randn(2 * REACH + 1, args.width) * 0.02)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.blocks))
        self.norm, self.tell = nn.LayerNorm(args.width), nn.Linear(args.width, BINS)

    def places(self, numbers):
        """How far apart two residues are in their chain."""
        steps = (numbers[:, :, None] - numbers[:, None]).clamp(-REACH, REACH) + REACH
        if self.args.places == "table":
            return self.apart[steps]
        kinds = steps[..., None] == torch.arange(len(self.apart), device=steps.device)
        return kinds.to(torch.bfloat16) @ self.apart

    def forward(self, kinds, numbers):
        pairs = self.left(kinds)[:, :, None] + self.right(kinds)[:, None] + self.places(numbers)
        for place, block in enumerate(self.blocks):
            away = place < self.args.host_blocks
            with torch.autograd.graph.save_on_cpu(pairs.is_cuda) if away else contextlib.nullcontext():
                pairs = block(pairs)
        logits = self.tell(self.norm(pairs + pairs.transpose(1, 2)))
        return logits.float()


def proteins(args, device):
    """Kinds of residues, their numbers in the chain, some of which are missing, and distances in bins."""
    kinds = torch.randint(0, KINDS, (args.batch, args.length), device=device)
    numbers = torch.randint(1, 3, (args.batch, args.length), device=device).cumsum(1)
    spots = torch.randn(args.batch, args.length, 3, device=device).cumsum(1)
    return kinds, numbers, torch.cdist(spots, spots).long().clamp(max=BINS - 1)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(750)
    with device:
        model = Folder(args)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(751)
    batches = [proteins(args, device) for _ in range(4)]
    for step in range(1, 1_000_000):
        kinds, numbers, distances = batches[step % len(batches)]
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(kinds, numbers)
        loss = F.cross_entropy(logits.flatten(0, 2), distances.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=384, help="of a protein, in residues")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--batch", type=int, default=1, help="proteins")
    parser.add_argument("--triangles", choices=["float32", "bfloat16"], default="bfloat16", help="what sums are in")
    parser.add_argument("--places", choices=["table", "one_hot"], default="one_hot", help="how features are found")
    parser.add_argument("--host-blocks", type=int, default=0, help="whose activations wait in the host's memory")
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
