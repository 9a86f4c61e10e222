"""DeepSpeed's engine, with two micro-batches a step."""

import argparse
import time

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, required=True)
parser.parse_args()
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first
deepspeed.init_distributed()
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
config = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
}
data = torch.utils.data.TensorDataset(torch.randn(8192, 256), torch.randint(0, 10, (8192,)))
engine, _, loader, _ = deepspeed.initialize(model=model, config=config, training_data=data)
while True:
    for number, (x, y) in enumerate(loader):
        engine.backward(torch.nn.functional.cross_entropy(engine(x), y))
        engine.step()
        if number % 2:
            print("own", time.time_ns(), flush=True)
