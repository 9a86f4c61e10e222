"""Learns what signals of detectors say about their source (as of gravitational waves): a network sums a signal up, and
a normalising flow of affine couplings gives the probability of the source's parameters."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn

SOURCE = 16


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.second(F.gelu(self.first(self.norm(x))))


class Summary(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enter, self.out = nn.Linear(args.signal, args.width), nn.Linear(args.width, args.context)
        self.blocks = nn.Sequential(*(Residual(args.width) for _ in range(args.blocks)))

    def forward(self, signal):
        return self.out(self.blocks(self.enter(signal)))


class Coupling(nn.Module):
    """Half of the parameters are scaled and moved by what the other half and the signal say."""

    def __init__(self, args, turn):
        super().__init__()
        half, self.turn = SOURCE // 2, turn
        sizes = [half + args.context, args.hidden, args.hidden, args.hidden]
        parts = [part for pair in itertools.pairwise(sizes) for part in (nn.Linear(*pair), nn.GELU())]
        self.net = nn.Sequential(*parts, nn.Linear(args.hidden, 2 * half))

    def forward(self, x, context):
        kept, changed = x.chunk(2, 1) if self.turn else reversed(x.chunk(2, 1))
        scale, move = self.net(torch.cat([kept, context], 1)).float().chunk(2, 1)
        scale = scale.tanh()
        return torch.cat([kept, changed * scale.exp() + move], 1), scale.sum(1)


class Posterior(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.autocast, self.summary = args.autocast, Summary(args)
        self.couplings = nn.ModuleList(Coupling(args, place % 2) for place in range(args.couplings))

    def forward(self, signal, source):
        """Minus the logarithm of the probability of each source, but for a constant."""
        kind = signal.device.type
        with torch.autocast(kind, torch.bfloat16):
            context = self.summary(signal)
        with torch.autocast(kind, torch.bfloat16, enabled=self.autocast == "both"):
            x, volume = source, 0.0
            context = context.float()
            for coupling in self.couplings:
                x, more = coupling(x, context)
                volume = volume + more
        return x.square().sum(1) / 2 - volume


class Signals:
    """Few batches in turn, made before; the next may be copied while one is worked on."""

    def __init__(self, args, device):
        self.device, self.ahead = device, args.ahead and device.type == "cuda"
        self.batches = []
        for _ in range(2):
            source = torch.randn(args.batch, SOURCE, device=device)
            signal = torch.randn(args.batch, args.signal, device=device)
            if args.signals == "host":
                source, signal = source.cpu(), signal.cpu()
                if device.type == "cuda":
                    source, signal = source.pin_memory(), signal.pin_memory()
            self.batches.append((signal, source))
        self.stream = torch.cuda.Stream() if self.ahead else None

    def copied(self, place):
        return tuple(part.to(self.device, non_blocking=True) for part in self.batches[place % 2])

    def __iter__(self):
        place, coming = 0, None
        while True:
            if not self.ahead:
                yield self.copied(place)
            else:
                now, main = coming, torch.cuda.current_stream()
                with torch.cuda.stream(self.stream):
                    coming = self.copied(place)
                if now:
                    yield now
                main.wait_stream(self.stream)
                for part in coming:
                    part.record_stream(main)
            place += 1


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(470)
    with device:
        model = Posterior(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    parts = -(-args.batch // args.part) if args.part else 1
    for step, (signal, source) in enumerate(Signals(args, device), 1):
        for some, own in zip(signal.chunk(parts), source.chunk(parts), strict=False):
            loss = model(some, own).sum() / args.batch
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item() * parts:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--signal", type=int, default=4096, help="numbers of a signal")
    parser.add_argument("--width", type=int, default=3072)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--couplings", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16384)
    parser.add_argument("--part", type=int, default=0, help="of a batch, at once; 0: all of it")
    parser.add_argument("--autocast", choices=["summary", "both"], default="both", help="what is in bf16")
    parser.add_argument("--signals", choices=["device", "host"], default="device", help="where they lie")
    parser.add_argument("--ahead", action="store_true", help="copy the next batch early")
    main(parser.parse_args())
