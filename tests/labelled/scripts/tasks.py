"""Trains a T5 of transformers on several tasks at once (translating, summing up, answering and so on): a step learns
from a batch of each of them. One GPU or DDP."""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import T5Config, T5ForConditionalGeneration

WORDS = 32_128


def made(args):
    config = T5Config(
        vocab_size=WORDS,
        d_model=args.width,
        d_kv=64,
        d_ff=args.inner,
        num_layers=args.layers,
        num_decoder_layers=args.layers,
        num_heads=max(1, args.width // 64),
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
        decoder_start_token_id=0,
        use_cache=False,
    )
    if args.activation:
        config.dense_act_fn = args.activation
    return T5ForConditionalGeneration(config).to(torch.bfloat16)


def texts(args, device):
    """Words that go in and words that are to come out, of one batch."""
    return [torch.randint(2, WORDS, (args.batch, length), device=device) for length in (args.length, args.answer)]


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(730)
    with device:
        model = made(args)
    model.train()
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(731 + rank)
    tasks = [[texts(args, device) for _ in range(3)] for _ in range(args.tasks)]
    for step in range(1, 1_000_000):
        total = 0.0
        for number, task in enumerate(tasks, 1):
            words, answers = task[step % len(task)]
            later = ranks > 1 and args.sync == "last" and number < len(tasks)
            with model.no_sync() if later else contextlib.nullcontext():
                loss = model(input_ids=words, labels=answers).loss / len(tasks)
                loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.print_every == 0 and rank == 0:
            print(f"step {step}: loss {total.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--inner", type=int, default=4096, help="width within a layer")
    parser.add_argument("--layers", type=int, default=6, help="of the encoder, and as many of the decoder")
    parser.add_argument("--activation", help="another than the usual one of T5")
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--batch", type=int, default=128, help="texts, of each task and rank")
    parser.add_argument("--length", type=int, default=128, help="of a text, in words")
    parser.add_argument("--answer", type=int, default=128, help="words of an answer")
    parser.add_argument("--sync", choices=["each", "last"], default="last", help="tasks whose gradients are averaged")
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
