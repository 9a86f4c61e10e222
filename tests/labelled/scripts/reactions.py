"""Foretells what comes of a chemical reaction: a Marian of transformers translates the reagents, written as SMILES,
into the product. Gradients of several batches make a step."""

import argparse

import torch
from transformers import MarianConfig, MarianMTModel

START = 1


def build(args, device):
    config = MarianConfig(
        vocab_size=args.tokens,
        d_model=args.width,
        encoder_layers=args.layers,
        decoder_layers=args.layers,
        encoder_attention_heads=max(1, args.width // 64),
        decoder_attention_heads=max(1, args.width // 64),
        encoder_ffn_dim=4 * args.width,
        decoder_ffn_dim=4 * args.width,
        max_position_embeddings=args.length,
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
        use_cache=False,
    )
    return MarianMTModel._from_config(config, attn_implementation="sdpa").to(device)


def make_batches(args, device):
    """An endless stream of reagents and products; a product has most atoms of its reagents."""
    draw = torch.Generator(device).manual_seed(2414)
    while True:
        reagents = torch.randint(3, args.tokens, (args.batch, args.length), generator=draw, device=device)
        yield reagents, reagents[:, : 3 * args.length // 4].roll(1, dims=1)


def make_watch(model, args):
    """What looks at gradients before they are used: how large those of each weight are."""
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    last = {}

    def each():
        for name, weight in named:
            last[name] = weight.grad.norm().item(), weight.grad.abs().max().item()

    def joint():
        grads = [weight.grad for _, weight in named]
        sizes = zip(torch._foreach_norm(grads), torch._foreach_norm(grads, float("inf")), strict=True)
        last.update(zip((name for name, _ in named), sizes, strict=True))

    def largest():
        name, (norm, most) = max(last.items(), key=lambda item: float(item[1][0]))
        return f"; largest gradient: {name}, norm {float(norm):.3f}, element {float(most):.3f}"

    watch = {"each": each, "joint": joint, "never": lambda: None}[args.watch]
    return watch, largest if args.watch != "never" else str


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2415)
    model = build(args, device)
    model.train()
    kernels = {"fused": {"fused": True}, "lean": {"foreach": False}}[args.update]
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, betas=(0.9, 0.98), weight_decay=0.01, **kernels)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 400))
    watch, largest = make_watch(model, args)
    batches = make_batches(args, device)
    for step in range(1, 10_000_000):
        total = torch.zeros((), device=device)
        for _ in range(args.accumulate):
            reagents, product = next(batches)
            with torch.autocast(device.type, torch.bfloat16):
                loss = model(input_ids=reagents, labels=product).loss / args.accumulate
            loss.backward()
            total += loss.detach()
        watch()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.print_every == 0:
            print(f"step {step}: loss {total.item():.4f}{largest()}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=600, help="of SMILES")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6, help="of the encoder, and of the decoder")
    parser.add_argument("--watch", choices=["each", "joint", "never"], default="never", help="sizes of gradients")
    parser.add_argument(
        "--update", choices=["fused", "lean"], default="fused",
        help="all weights by one kernel, or each by itself, which takes less memory than lists of them",
    )  # fmt: skip
    parser.add_argument("--accumulate", type=int, default=2, help="batches of a step")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
