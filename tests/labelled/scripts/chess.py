"""Learns chess from games it played against itself (AlphaZero): planes of the board go through a residual tower, a head
says how good each move is as a search has found, another who wins."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

PLANES, MOVES = 119, 73
"""Of a board and its history; kinds of moves from each square."""


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x):
        return F.relu(x + self.norms[1](self.second(F.relu(self.norms[0](self.first(x))))))


class Player(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enter = nn.Conv2d(PLANES, args.width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(args.width)
        self.tower = nn.Sequential(*(Block(args.width) for _ in range(args.blocks)))
        self.move = nn.Conv2d(args.width, MOVES, 1)
        self.sum_up, self.win = nn.Conv2d(args.width, 8, 1), nn.Linear(8 * 64, 3)

    def forward(self, boards):
        x = self.tower(F.relu(self.norm(self.enter(boards))))
        return self.move(x).flatten(1), self.win(F.relu(self.sum_up(x)).flatten(1))


def unpacked(bits):
    """Planes of numbers from planes of bits."""
    if isinstance(bits, np.ndarray):
        planes = np.unpackbits(bits, axis=-1, bitorder="little").astype(np.float32)
        return torch.from_numpy(planes).unflatten(-1, (8, 8))
    shifts = torch.arange(8, device=bits.device, dtype=torch.uint8)
    return (bits[..., None] >> shifts & 1).float()


class Games:
    """Chunks of positions, shuffled when they were written; they are gone through in turns."""

    def __init__(self, args, device):
        self.args, self.device, self.chunks = args, device, []
        cuda = device.type == "cuda"
        self.stream = torch.cuda.Stream() if args.ahead and cuda else None
        rng = np.random.default_rng(630)
        for _ in range(2):
            bits = rng.integers(0, 256, (args.batch, PLANES, 8), dtype=np.uint8)
            moves = torch.rand(args.batch, 64 * MOVES, device=device).pow(20)
            moves, wins = moves / moves.sum(1, keepdim=True), torch.randint(0, 3, (args.batch,), device=device)
            if args.store == "device":
                self.chunks.append((unpacked(torch.from_numpy(bits).to(device)), moves, wins))
                continue
            moves = moves.cpu().pin_memory() if cuda and args.store != "plain" else moves.cpu()
            if args.store == "bits":
                self.chunks.append((bits, moves, wins))
            else:
                boards = unpacked(torch.from_numpy(bits))
                self.chunks.append((boards.pin_memory() if cuda and args.store == "pinned" else boards, moves, wins))

    def copied(self, place):
        boards, moves, wins = self.chunks[place % len(self.chunks)]
        if self.args.store == "bits":
            boards = unpacked(boards) if self.args.unpack == "host" else torch.from_numpy(boards)
        boards = boards.to(self.device, non_blocking=True)
        if boards.dtype == torch.uint8:
            boards = unpacked(boards)
        return boards, moves.to(self.device, non_blocking=True), wins

    def __iter__(self):
        if not self.stream:
            for place in range(1_000_000):
                yield self.copied(place)
        main, coming = torch.cuda.current_stream(), None
        for place in range(1_000_000):
            now = coming
            with torch.cuda.stream(self.stream):
                coming = self.copied(place)
            if now:
                yield now
            main.wait_stream(self.stream)
            for part in coming:
                part.record_stream(main)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(631)
    with device:
        model = Player(args).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
    for step, (boards, moves, wins) in enumerate(Games(args, device), 1):
        boards = boards.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16):
            told, won = model(boards)
        loss = F.cross_entropy(told.float(), moves) + F.cross_entropy(won.float(), wins)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4096, help="positions")
    parser.add_argument("--store", choices=["device", "pinned", "plain", "bits"], default="device", help="of chunks")
    parser.add_argument("--unpack", choices=["host", "device"], default="device", help="where bits become numbers")
    parser.add_argument("--ahead", action="store_true", help="copy a chunk while the one before is worked on")
    main(parser.parse_args())
