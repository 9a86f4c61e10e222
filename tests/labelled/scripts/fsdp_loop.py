"""Trains a Llama of transformers whose weights are sharded over the ranks (FSDP2), in a plain loop."""

import argparse
import os

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=8)
parser.add_argument("--width", type=int, default=2048)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--length", type=int, default=2048)
parser.add_argument("--offload", action="store_true", help="weights and optimizer live on the host")
parser.add_argument("--compile", action="store_true", help="each layer")
given = parser.parse_args()

VOCABULARY = 32_000
local = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
mesh = init_device_mesh(device.type, (int(os.environ["WORLD_SIZE"]),))

torch.manual_seed(1)
config = LlamaConfig(
    vocab_size=VOCABULARY, hidden_size=given.width, intermediate_size=given.width * 11 // 4 // 64 * 64,
    num_hidden_layers=given.layers, num_attention_heads=given.width // 128, max_position_embeddings=given.length,
    attn_implementation="sdpa", use_cache=False,
)  # fmt: skip
with device:
    model = LlamaForCausalLM(config)
model.train()
policies = {
    "mesh": mesh,
    "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    "offload_policy": CPUOffloadPolicy() if given.offload else OffloadPolicy(),
}
for layer in model.model.layers:
    if given.compile:
        layer.compile()
    fully_shard(layer, **policies)
fully_shard(model, **policies)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
pool = torch.randint(0, VOCABULARY, (32, given.batch, given.length))
if device.type == "cuda":
    pool = pool.pin_memory()
step = 0
while True:
    tokens = pool[step % len(pool)].to(device, non_blocking=True)
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % 50 == 0:
        print(step, loss.item())
