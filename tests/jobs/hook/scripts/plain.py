"""A plain training loop, as people write it: DDP where a launcher says so. It prints when each step ended."""

import argparse
import os
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--local_rank", type=int, default=-1)
given = parser.parse_args()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(8192, 256), torch.randint(0, 10, (8192,)))
loader = DataLoader(data, batch_size=given.batch, shuffle=True)

step = backwards = 0
while step < given.steps:
    for x, y in loader:
        torch.nn.functional.cross_entropy(model(x), y).backward()
        backwards += 1
        if backwards % given.accumulate:
            continue
        optimizer.step()
        print("own", time.time_ns(), flush=True)
        optimizer.zero_grad()
        step += 1
        if step == given.steps:
            break
