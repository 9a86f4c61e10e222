"""Tells payments that are fraud from others: tables look up what kind of payment it is, and a residual network of
perceptrons reads these and numbers about the card. It may be kept how hard each payment is to tell (its loss, averaged
over epochs), to look at those later that perhaps have a wrong label."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Payments(Dataset):
    def __init__(self, args):
        draw = torch.Generator().manual_seed(2141)
        self.numbers = torch.randn(args.payments, args.numbers, generator=draw)
        self.kinds = torch.randint(args.kinds, (args.payments, args.columns), generator=draw)
        self.fraud = (torch.rand(args.payments, generator=draw) < 0.05).float()

    def __len__(self):
        return len(self.fraud)

    def __getitem__(self, place):
        """Of one payment, or of many."""
        return torch.as_tensor(place), self.numbers[place], self.kinds[place], self.fraud[place]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.narrow(F.silu(self.widen(self.norm(x))))


class Detector(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.tables = nn.Embedding(args.columns * args.kinds, 16)
        self.register_buffer("first", torch.arange(args.columns) * args.kinds)
        self.enter = nn.Linear(args.numbers + 16 * args.columns, args.width)
        self.blocks = nn.ModuleList(Block(args.width) for _ in range(args.blocks))
        self.leave = nn.Linear(args.width, 1)

    def forward(self, numbers, kinds):
        x = self.enter(torch.cat([numbers, self.tables(kinds + self.first).flatten(1)], dim=1))
        for block in self.blocks:
            x = block(x)
        return self.leave(x).squeeze(1)


class HardOnes:
    """How hard each payment was, lately."""

    def __init__(self, args, device):
        self.keep = 0.9
        self.table = torch.full((args.payments,), torch.nan, device=device) if args.hard == "table" else None
        self.known = {}

    def add(self, places, losses):
        if self.table is not None:
            before = self.table[places]
            self.table[places] = torch.where(before.isnan(), losses, torch.lerp(losses, before, self.keep))
            return
        for place, loss in zip(places.tolist(), losses.tolist(), strict=True):
            self.known[place] = self.keep * self.known.get(place, loss) + (1 - self.keep) * loss


def batches(args, device):
    payments = Payments(args)
    if args.rows == "device":
        parts = [part.to(device) for part in payments[torch.arange(args.payments)]]
        draw = torch.Generator(device).manual_seed(2142)
        while True:
            chosen = torch.randint(args.payments, (args.batch,), generator=draw, device=device)
            yield [part[chosen] for part in parts]
    options = {"num_workers": args.workers, "pin_memory": device.type == "cuda", "persistent_workers": args.workers > 0}
    draw = torch.Generator().manual_seed(2142)
    order = RandomSampler(payments, generator=draw)
    if args.rows == "each":
        loader = DataLoader(payments, args.batch, sampler=order, drop_last=True, **options)
    else:
        sampler = BatchSampler(order, args.batch, drop_last=True)
        loader = DataLoader(payments, None, sampler=sampler, **options)
    while True:
        for batch in loader:
            yield [part.to(device, non_blocking=True) for part in batch]


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2143)
    model = Detector(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
    hard = HardOnes(args, device) if args.hard != "none" else None
    for step, (places, numbers, kinds, fraud) in enumerate(batches(args, device), 1):
        with torch.autocast(device.type, torch.bfloat16, enabled=args.amp):
            scores = model(numbers, kinds)
        losses = F.binary_cross_entropy_with_logits(scores.float(), fraud, reduction="none")
        loss = losses.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if hard:
            hard.add(places, losses.detach())
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--payments", type=int, default=500_000)
    parser.add_argument("--numbers", type=int, default=64, help="of a payment")
    parser.add_argument("--columns", type=int, default=12, help="that say of what kind it is")
    parser.add_argument("--kinds", type=int, default=1000, help="of each of these columns")
    parser.add_argument(
        "--rows", choices=["each", "joint", "device"], default="device",
        help="taken by workers, one by one or a batch at once, or on the device",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--hard", choices=["none", "dict", "table"], default="none", help="in what it is kept")
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
