"""Trains an ESM of transformers on amino acids that are hidden in proteins; ranks share the weights (FSDP2)."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import EsmConfig, EsmForMaskedLM

LETTERS, MASK = 64, 32
"""The first 33 are used; a round number suits the hardware."""


def build(args, device):
    config = EsmConfig(
        vocab_size=LETTERS, mask_token_id=MASK, pad_token_id=1, hidden_size=args.width, num_hidden_layers=args.layers,
        num_attention_heads=max(2, args.width // 64), intermediate_size=4 * args.width, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, position_embedding_type="absolute", token_dropout=False,
        emb_layer_norm_before=True, attn_implementation="sdpa", max_position_embeddings=args.length + 2,
    )  # fmt: skip
    with device:
        model = EsmForMaskedLM(config).train()
    for layer in model.esm.encoder.layer:
        # The library writes the GELU out.
        layer.intermediate = nn.Sequential(layer.intermediate.dense, nn.GELU())
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("contact_head" not in name)
    return model


def shard(model, args):
    policies = {
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        "reshard_after_forward": args.micro == 1 or args.sync == "each",
    }
    for layer in model.esm.encoder.layer:
        fully_shard(layer, **policies)
    return fully_shard(model, **policies)


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(360)
    model = build(args, device)
    if args.compile:
        for layer in model.esm.encoder.layer:
            layer.compile()
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = shard(model, args)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5, fused=True)
    torch.manual_seed(361 + rank)
    proteins = torch.randint(4, 24, (4, args.micro, args.batch, args.length))
    hidden = torch.rand(proteins.shape) < 0.15
    labels, proteins = torch.where(hidden, proteins, -100), torch.where(hidden, MASK, proteins)
    if cuda:
        labels, proteins = labels.pin_memory(), proteins.pin_memory()
    for step in range(1, 1_000_000):
        for number, (some, wanted) in enumerate(zip(proteins[step % 4], labels[step % 4], strict=True), 1):
            if ranks > 1 and args.sync == "last":
                model.set_requires_gradient_sync(number == args.micro)
                model.set_reshard_after_backward(number == args.micro)
            some, wanted = some.to(device, non_blocking=True), wanted.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=ranks == 1):
                loss = model(input_ids=some, labels=wanted).loss / args.micro
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item() * args.micro:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=48, help="proteins at once, on each rank")
    parser.add_argument("--micro", type=int, default=1, help="batches before the optimizer steps")
    parser.add_argument("--length", type=int, default=512, help="of a protein")
    parser.add_argument("--sync", choices=["last", "each"], default="last", help="batches that end in one")
    parser.add_argument("--compile", action="store_true", help="each layer")
    main(parser.parse_args())
