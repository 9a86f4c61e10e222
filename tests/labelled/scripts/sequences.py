"""Recommends what comes next in a user's history (SASRec), with Accelerate: items by number, or by what is in them."""

import argparse
import random

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Histories(Dataset):
    """Of each user, with items that the user has not seen for each of the places."""

    def __init__(self, items, length, negatives):
        self.items, self.length, self.negatives = items, length, negatives

    def __len__(self):
        return 500_000

    def __getitem__(self, user):
        rng = random.Random(user)
        history = [rng.randrange(1, self.items) for _ in range(self.length + 1)]
        seen, unseen = set(history), []
        for _ in range(self.length):
            others = []
            while len(others) < self.negatives:
                item = rng.randrange(1, self.items)
                if item not in seen:
                    others.append(item)
            unseen.append(others)
        return torch.tensor(history), torch.tensor(unseen)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // 64)
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.before_attention(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x))


class Recommender(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.items, self.places = nn.Embedding(config.items, config.width), nn.Embedding(config.length, config.width)
        self.content = nn.Linear(config.content, config.width) if config.content else None
        self.blocks = nn.ModuleList(Block(config.width) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, history, negatives, content=None):
        """Scores of the true next item, and of the negatives."""
        x = self.items(history[:, :-1]) + self.places.weight
        if content is not None:
            x = x + self.content(content)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        # The true one is the first of the candidates.
        candidates = torch.cat([history[:, 1:, None], negatives], 2)
        return torch.einsum("blw,blcw->blc", x, self.items(candidates))


def stored(config, cuda):
    """Two batches that lie in memory."""
    made = []
    for _ in range(2):
        batch = [
            torch.randint(1, config.items, (config.batch, config.length + 1)),
            torch.randint(1, config.items, (config.batch, config.length, config.negatives)),
        ]
        if config.content:
            batch.append(torch.rand(config.batch, config.length, config.content) - 0.5)
        made.append([part.pin_memory() if cuda and not config.no_pin else part for part in batch])
    while True:
        yield from made


def moved(batches, device):
    for batch in batches:
        yield [part.to(device, non_blocking=True) for part in batch]


def moved_ahead(batches, device):
    """Copies the next batch on a side stream while the current one is trained on."""
    stream, batches = torch.cuda.Stream(device), moved(batches, device)
    with torch.cuda.stream(stream):
        coming = next(batches)
    while True:
        torch.cuda.current_stream().wait_stream(stream)
        batch = coming
        for part in batch:
            part.record_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            coming = next(batches)
        yield batch


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=50_000)
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--negatives", type=int, default=4, help="items for each place that the user has not seen")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=256, help="users")
    parser.add_argument("--content", type=int, default=0, help="numbers that tell what is in an item")
    parser.add_argument("--draw", action="store_true", help="histories and negatives, as they are loaded")
    parser.add_argument("--workers", type=int, default=4, help="that do so")
    parser.add_argument("--no-pin", action="store_true")
    parser.add_argument("--ahead", action="store_true", help="copy a batch while the one before is trained on")
    config = parser.parse_args()

    accelerator = Accelerator(mixed_precision="bf16")
    cuda = accelerator.device.type == "cuda"
    torch.manual_seed(80)
    with accelerator.device:
        model = Recommender(config)
        nn.init.normal_(model.items.weight, std=config.width**-0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    if config.draw:
        histories = Histories(config.items, config.length, config.negatives)
        batches = DataLoader(histories, config.batch, num_workers=config.workers, pin_memory=cuda)
    else:
        batches = stored(config, cuda)
    move = moved_ahead if config.ahead and cuda else moved
    for step, batch in enumerate(move(batches, accelerator.device), 1):
        scores = model(*batch).float()
        loss = -F.logsigmoid(scores[..., 0]).mean() - F.logsigmoid(-scores[..., 1:]).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            accelerator.print(f"step {step}: {loss.item():.4f}")


if __name__ == "__main__":
    main()
