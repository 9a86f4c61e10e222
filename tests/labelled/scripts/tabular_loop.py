"""Trains a network on wide rows of numbers, as of clicks or sensors, that lie in memory; a batch is many rows."""

import argparse

import torch
from torch import nn
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=65_536, help="of a batch")
parser.add_argument("--features", type=int, default=1024)
parser.add_argument("--width", type=int, default=1024)
parser.add_argument("--layers", type=int, default=3)
parser.add_argument("--pin", action="store_true")
parser.add_argument("--ahead", action="store_true", help="copy the next batch on a second stream")
parser.add_argument("--auc-every", type=int, default=0, help="area under the curve, on the host, after so many steps")
parser.add_argument("--print-every", type=int, default=50)
given = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1)
pool = [(torch.rand(given.rows, given.features) - 0.5, (torch.rand(given.rows) < 0.5).float()) for _ in range(4)]
if given.pin and device.type == "cuda":
    pool = [tuple(part.pin_memory() for part in batch) for batch in pool]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(given.features, given.width), nn.Linear(given.width, 1)
        self.layers = nn.ModuleList(nn.Linear(given.width, given.width) for _ in range(given.layers))

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(functional.relu(x))
        return self.last(x).squeeze(1)


def batches():
    step = 0
    while True:
        yield tuple(part.to(device, non_blocking=True) for part in pool[step % len(pool)])
        step += 1


def batches_ahead():
    """Batches on the device, each copied while the one before it is computed with."""
    side, source, current = torch.cuda.Stream(), batches(), torch.cuda.current_stream()
    with torch.cuda.stream(side):
        coming = next(source)
    while True:
        current.wait_stream(side)
        batch = coming
        for part in batch:
            part.record_stream(current)
        with torch.cuda.stream(side):
            coming = next(source)
        yield batch


def auc(scores, labels):
    """Area under the curve of true by false positives."""
    order = scores.argsort(descending=True)
    hits = labels[order].double()
    true, false = hits.cumsum(0), (1 - hits).cumsum(0)
    return (torch.trapezoid(true, false) / (true[-1] * false[-1])).item()


model = Net().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
source = batches_ahead() if given.ahead and device.type == "cuda" else batches()
for step, (rows, labels) in enumerate(source, 1):
    with torch.autocast(device.type, torch.bfloat16):
        scores = model(rows)
    loss = functional.binary_cross_entropy_with_logits(scores.float(), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if given.auc_every and step % given.auc_every == 0:
        print(step, "area", auc(scores.detach().float().cpu(), labels.cpu()))
    if step % given.print_every == 0:
        print(step, loss.item())
