"""Teaches a Qwen3 of transformers to describe pictures, whose features a vision tower has made before; GPUs share the
model by FSDP2."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import Qwen3Config, Qwen3ForCausalLM

WORDS, PATCHES, SEEN = 32_000, 576, 1024
"""Patches of a tile, and numbers by which the tower describes each."""


class Captioner(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.pool = args.pool
        config = Qwen3Config(
            vocab_size=WORDS, hidden_size=args.width, intermediate_size=3 * args.width, num_hidden_layers=args.layers,
            num_attention_heads=max(2, args.width // 128), num_key_value_heads=max(1, args.width // 512),
            head_dim=min(128, args.width // 2), use_cache=False, attn_implementation="sdpa",
        )  # fmt: skip
        self.project = nn.Sequential(nn.Linear(SEEN, args.width), nn.GELU(), nn.Linear(args.width, args.width))
        self.language = Qwen3ForCausalLM(config)

    def forward(self, features, words):
        seen = self.project(features.unflatten(1, (-1, self.pool)).mean(2))
        x = torch.cat([seen, self.language.model.embed_tokens(words).to(seen.dtype)], 1)
        labels = torch.cat([words.new_full(seen.shape[:2], -100), words], 1)
        # No text is padded or packed with others: looking for that would read from the device in each forward pass.
        return self.language(inputs_embeds=x, labels=labels, attention_mask={"full_attention": None}).loss


def shard(model, args):
    """Over the ranks: layer by layer, or each module that has weights by itself."""
    policies = {
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        "reshard_after_forward": args.sync == "each",
    }
    if args.units == "layers":
        units = list(model.language.model.layers)
    else:
        units = [part for part in model.modules() if any(True for _ in part.parameters(recurse=False))]
    for unit in units:
        fully_shard(unit, **policies)
    fully_shard(model, **policies)


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(240)
    with device:
        model = Captioner(args)
    if args.compile:
        for layer in model.language.model.layers:
            layer.compile()
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        shard(model, args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    torch.manual_seed(241 + rank)
    features = torch.rand(2, args.micro * args.batch, args.tiles * PATCHES, SEEN)
    words = torch.randint(0, WORDS, (2, args.micro * args.batch, args.words))
    if args.features == "pinned" and cuda:
        features, words = features.pin_memory(), words.pin_memory()
    for step in range(1, 1_000_000):
        pictures, texts = (stored[step % 2].split(args.batch) for stored in (features, words))
        for micro, (some, text) in enumerate(zip(pictures, texts, strict=True), 1):
            if ranks > 1 and args.sync == "last":
                model.set_requires_gradient_sync(micro == args.micro)
                model.set_reshard_after_backward(micro == args.micro)
            some, text = some.to(device, non_blocking=True), text.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=ranks == 1):
                loss = model(some, text) / args.micro
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item() * args.micro:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8, help="pictures with their texts, at once on each rank")
    parser.add_argument("--micro", type=int, default=1, help="batches before the optimizer steps")
    parser.add_argument("--tiles", type=int, default=5, help="of a picture")
    parser.add_argument("--pool", type=int, default=4, help="patches that become one token")
    parser.add_argument("--words", type=int, default=304, help="of a text")
    parser.add_argument("--features", choices=["pinned", "plain"], default="pinned", help="memory they are kept in")
    parser.add_argument("--units", choices=["layers", "modules"], default="layers", help="that FSDP gathers together")
    parser.add_argument("--sync", choices=["each", "last"], default="each", help="micro-batches that end in one")
    parser.add_argument("--compile", action="store_true", help="each layer")
    main(parser.parse_args())
