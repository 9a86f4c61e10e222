"""Tunes adapters (LoRA of peft) of a GPT-NeoX of transformers on poems: the weights of the model itself stay as they
are. A word of a poem counts the more, the nearer it is to the end of a line."""

import argparse
import math

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM


def made(args, device):
    config = GPTNeoXConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.width,
        intermediate_size=4 * args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=max(1, args.width // 128),
        max_position_embeddings=args.length,
        use_cache=False,
    )
    with device:
        base = GPTNeoXForCausalLM._from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    adapters = LoraConfig(
        r=args.rank,
        lora_alpha=2 * args.rank,
        target_modules=["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
        task_type="CAUSAL_LM",
    )
    return get_peft_model(base, adapters, autocast_adapter_dtype=args.adapters == "fp32")


def losses(model, words):
    """Of each word but the first."""
    scores = model(input_ids=words).logits
    return F.cross_entropy(scores[:, :-1].flatten(0, 1), words[:, 1:].flatten(), reduction="none").view(len(words), -1)


class Meter:
    """A moving average that stays on the device."""

    def __init__(self):
        self.value = None

    def add(self, value):
        self.value = value if self.value is None else torch.lerp(self.value, value, 0.05)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2240)
    model = made(args, device)
    model.train()
    tuned = [weight for weight in model.parameters() if weight.requires_grad]
    print(f"{sum(weight.numel() for weight in tuned) / 1e6:.1f} million weights are tuned", flush=True)
    optimizer = torch.optim.AdamW(tuned, args.lr, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    poems = [torch.randint(args.vocabulary, (args.batch, args.length), device=device) for _ in range(4)]
    share = 1 + (torch.arange(args.length - 1, device=device) % args.line) / args.line
    share = share / share.mean()
    plain = Meter()
    for step in range(1, 10_000_000):
        words = poems[step % len(poems)]
        each = losses(model, words)
        loss = (each * share).mean()
        loss.backward()
        optimizer.step()
        if args.measure == "before":
            plain.add(each.detach().mean())
        else:
            model.eval()
            with torch.no_grad():
                plain.add(losses(model, words).mean())
            model.train()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}, perplexity {math.exp(plain.value.item()):.1f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=16_000)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--line", type=int, default=12, help="words of a line")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--adapters", choices=["bf16", "fp32"], default="bf16", help="number format of what is tuned")
    parser.add_argument("--measure", choices=["before", "after"], default="before", help="perplexity, around a step")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
