"""Tunes a small language model of transformers to answer questions about pictures of pages: a frozen vision tower reads
the page, a projection makes words of four patches each, and adapters (LoRA of peft) learn to answer."""

import argparse

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM, SiglipVisionConfig, SiglipVisionModel


def tower_of(args):
    config = SiglipVisionConfig(
        hidden_size=args.tower_width,
        intermediate_size=4 * args.tower_width,
        num_hidden_layers=args.tower_layers,
        num_attention_heads=max(1, args.tower_width // 64),
        image_size=args.side,
        patch_size=14,
        vision_use_head=False,
        attn_implementation="sdpa",
    )
    tower = SiglipVisionModel(config).to(getattr(torch, args.tower_dtype))
    return tower.eval().requires_grad_(False)


def keep_on_host(tower, device):
    """Weights of a layer come to the device when it is their turn."""
    for layers in (part for part in tower.modules() if isinstance(part, nn.ModuleList)):
        for layer in layers:
            kept = [(weight, weight.data.cpu()) for weight in layer.parameters()]

            def fetch(*_, kept=kept):
                for weight, host in kept:
                    weight.data = host.to(device, non_blocking=True)

            def drop(*_, kept=kept):
                for weight, host in kept:
                    weight.data = host

            layer.register_forward_pre_hook(fetch)
            layer.register_forward_hook(drop)


def language_model_of(args):
    config = Qwen2Config(
        vocab_size=args.words,
        hidden_size=args.width,
        intermediate_size=args.width * 4,
        num_hidden_layers=args.layers,
        num_attention_heads=max(1, args.width // 64),
        num_key_value_heads=max(1, args.width // 64),
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, lora)


class Reader(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args, self.side = args, args.side // 14
        self.tower, self.model = tower_of(args), language_model_of(args)
        enter = 4 * args.tower_width
        self.project = nn.Sequential(nn.LayerNorm(enter), nn.Linear(enter, args.width), nn.GELU())

    def seen(self, pages):
        with torch.no_grad():
            dtype = getattr(torch, self.args.tower_dtype)
            with torch.autocast(pages.device.type, enabled=False):
                x = self.tower(pixel_values=pages.to(dtype)).last_hidden_state
        x = x.unflatten(1, (self.side // 2, 2, self.side // 2, 2)).permute(0, 1, 3, 2, 4, 5)
        return self.project(x.flatten(3).flatten(1, 2))

    def forward(self, pages, words):
        """Loss of the words of the answer, which come last."""
        answer, embed = self.args.answer, self.model.get_input_embeddings()
        seen = self.seen(pages)
        x = torch.cat([seen.to(embed.weight.dtype), embed(words)], 1)
        if self.args.logits == "answer":
            logits = self.model(inputs_embeds=x, logits_to_keep=answer + 1).logits[:, :-1]
            return F.cross_entropy(logits.flatten(0, 1).float(), words[:, -answer:].flatten())
        labels = words.new_full(x.shape[:2], -100)
        labels[:, -answer:] = words[:, -answer:]
        return self.model(inputs_embeds=x, labels=labels).loss


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(690)
    with device:
        model = Reader(args)
    if args.tower == "host":
        keep_on_host(model.tower, device)
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-4, fused=True)
    batches = []
    for _ in range(3):
        pages = torch.rand(args.batch, 3, args.side, args.side, device=device)
        batches.append((pages, torch.randint(0, args.words, (args.batch, args.question + args.answer), device=device)))
    for step in range(1, 1_000_000):
        pages, words = batches[step % len(batches)]
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(pages, words)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=448, help="of a page, in pixels; a multiple of 28")
    parser.add_argument("--tower-width", type=int, default=1024)
    parser.add_argument("--tower-layers", type=int, default=24)
    parser.add_argument("--tower-dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--tower", choices=["host", "device"], default="device", help="where its weights are kept")
    parser.add_argument("--words", type=int, default=151_936)
    parser.add_argument("--width", type=int, default=896)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--question", type=int, default=192, help="words of a question")
    parser.add_argument("--answer", type=int, default=64, help="words of an answer")
    parser.add_argument("--logits", choices=["all", "answer"], default="answer", help="of which places")
    parser.add_argument("--batch", type=int, default=8)
    main(parser.parse_args())
