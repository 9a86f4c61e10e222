"""Trains a GPT-2 of transformers with DeepSpeed."""

import argparse

import deepspeed
import torch
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--offload", action="store_true")
parser.add_argument("--width", type=int, default=1024)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--length", type=int, default=1024)
given = parser.parse_args()

zero = {"stage": given.stage, "overlap_comm": True, "contiguous_gradients": True}
if given.offload:
    zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
config = {
    "train_micro_batch_size_per_gpu": given.batch,
    "bf16": {"enabled": torch.cuda.is_available()},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
    "zero_optimization": zero,
    "zero_force_ds_cpu_optimizer": False,
    "gradient_clipping": 1.0,
}
deepspeed.init_distributed()
torch.manual_seed(1)
shape = {"n_embd": given.width, "n_layer": given.layers, "n_head": given.width // 64, "n_positions": given.length}
model = GPT2LMHeadModel(GPT2Config(**shape, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False))
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
pool = torch.randint(0, 50_000, (64, given.batch, given.length))
if torch.cuda.is_available():
    pool = pool.pin_memory()
step = 0
while True:
    tokens = pool[step % len(pool)].to(engine.device, non_blocking=True)
    engine.backward(engine(input_ids=tokens, labels=tokens).loss)
    engine.step()
    step += 1
