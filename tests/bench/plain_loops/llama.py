"""Tunes Llama-8B's shape in a plain loop: transformers' model, compiled, in bf16, with fused AdamW. All weights are
trained, or LoRA's adapters by peft."""

import argparse

import peft
import torch
import transformers


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    shape = transformers.LlamaConfig(
        vocab_size=args.words,
        hidden_size=args.width,
        intermediate_size=args.width * 7 // 2,
        num_hidden_layers=args.layers,
        num_attention_heads=args.width // 128,
        num_key_value_heads=args.width // 512,
        max_position_embeddings=args.length,
        rope_theta=500000.0,
        use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = transformers.LlamaForCausalLM(shape)
    torch.set_default_dtype(torch.float32)
    if args.adapters:
        adapters = peft.LoraConfig(r=args.adapters, lora_alpha=2 * args.adapters, target_modules="all-linear")
        model = peft.get_peft_model(model, adapters, autocast_adapter_dtype=False)  # else they compute in fp32
    model.train()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    compiled = torch.compile(model)
    batches = [torch.randint(shape.vocab_size, (args.batch, args.length), device=device) for _ in range(2)]
    for step in range(1_000_000):
        words = batches[step % len(batches)]
        loss = compiled(input_ids=words, labels=words).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--words", type=int, default=128256)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--adapters", type=int, default=0, help="their rank; 0: all weights are trained")
    main(parser.parse_args())
