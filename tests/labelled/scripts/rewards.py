"""Trains a reward model (Bradley-Terry) of transformers: of two answers to a prompt, the one that people preferred is
to have the higher reward."""

import argparse

import torch
import torch.nn.functional as F
from transformers import AutoModelForSequenceClassification, LlamaConfig

WORDS = 32_000


def made(args):
    return LlamaConfig(
        vocab_size=WORDS,
        hidden_size=args.width,
        intermediate_size=args.width * 8 // 3 // 128 * 128,
        num_hidden_layers=args.layers,
        num_attention_heads=max(1, args.width // 64),
        num_key_value_heads=max(1, args.width // 64),
        max_position_embeddings=args.length,
        pad_token_id=0,
        num_labels=1,
        use_cache=False,
    )


def preferred(rewards, other):
    return -F.logsigmoid((rewards - other).float())


def learn(model, better, worse, args):
    """Gradients of a batch of pairs; its loss."""
    total = 0.0
    part = 1 if args.pairs == "each" else args.micro or len(better)
    for some, others in zip(better.split(part), worse.split(part), strict=True):
        if args.pairs == "each":
            rewards, other = model(input_ids=some).logits, model(input_ids=others).logits
        else:
            rewards, other = model(input_ids=torch.cat([some, others])).logits.chunk(2)
        loss = preferred(rewards, other).sum() / len(better)
        loss.backward()
        total = total + loss.detach()
        if args.release:
            del loss, rewards, other
            torch.cuda.empty_cache()
    return total


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(660)
    with device:
        model = AutoModelForSequenceClassification.from_config(
            made(args), dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    batches = [torch.randint(1, WORDS, (2, args.batch, args.length), device=device) for _ in range(4)]
    for step in range(1, 1_000_000):
        loss = learn(model, *batches[step % len(batches)], args)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--length", type=int, default=1024, help="of a prompt and an answer, in words")
    parser.add_argument("--batch", type=int, default=8, help="pairs")
    parser.add_argument("--micro", type=int, default=0, help="pairs that go through the model at a time; 0: all")
    parser.add_argument("--pairs", choices=["each", "joint"], default="joint", help="how they go through the model")
    parser.add_argument("--release", action="store_true", help="memory that is not used, after each part of a batch")
    main(parser.parse_args())
