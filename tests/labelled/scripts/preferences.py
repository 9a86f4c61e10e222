"""Tunes LoRA adapters (peft) of a Llama on pairs of answers, the preferred and the other one (DPO); one GPU or DDP."""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

WORDS, BETA = 32_000, 0.1
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Lion(torch.optim.Optimizer):
    """Steps by the sign of a mean of gradients: weight by weight, or all at once."""

    def __init__(self, parameters, lr, betas=(0.9, 0.99), decay=0.01, joint=True):
        super().__init__(parameters, {"lr": lr, "betas": betas, "decay": decay})
        self.joint = joint

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            for p in weights:
                if not self.state[p]:
                    self.state[p]["mean"] = torch.zeros_like(p)
            means, (short, long), lr = [self.state[p]["mean"] for p in weights], group["betas"], group["lr"]
            kept = 1 - lr * group["decay"]
            if self.joint:
                grads = [p.grad for p in weights]
                updates = torch._foreach_mul(means, short)
                torch._foreach_add_(updates, grads, alpha=1 - short)
                torch._foreach_sign_(updates)
                torch._foreach_mul_(weights, kept)
                torch._foreach_add_(weights, updates, alpha=-lr)
                torch._foreach_mul_(means, long)
                torch._foreach_add_(means, grads, alpha=1 - long)
                continue
            for p, mean in zip(weights, means, strict=True):
                update = mean.mul(short).add_(p.grad, alpha=1 - short)
                p.mul_(kept).add_(update.sign_(), alpha=-lr)
                mean.mul_(long).add_(p.grad, alpha=1 - long)


def keep_on_host(layer):
    """What a layer keeps for its backward pass lies in the host's memory meanwhile."""
    forward = layer.forward

    def kept(*args, **kwargs):
        with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()):
            return forward(*args, **kwargs)

    layer.forward = kept


def score(model, tokens, prompt):
    """Logarithm of the chance of each answer; and what the model would have said."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits[:, prompt - 1 :]
    answers = tokens[:, prompt:]
    chances = -F.cross_entropy(logits.flatten(0, 1).float(), answers.flatten(), reduction="none")
    return chances.view_as(answers).sum(1), logits.detach()


def rouge(found, truth):
    """ROUGE-L: the longest sequence that both have, relative to their mean length."""
    row = [0] * (len(truth) + 1)
    for word in found:
        before = 0
        for place, other in enumerate(truth, 1):
            before, row[place] = row[place], before + 1 if word == other else max(row[place], row[place - 1])
    return 2 * row[-1] / (len(found) + len(truth))


def build(args, device):
    inner = args.width * 11 // 4 // 64 * 64 or 64
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=args.width, intermediate_size=inner, num_hidden_layers=args.layers,
        num_attention_heads=max(1, args.width // 128), max_position_embeddings=args.length, use_cache=False,
    )  # fmt: skip
    with device:
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    lora = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, lora_dropout=0.0, target_modules=LINEAR)
    model = get_peft_model(model, lora)
    for layer in model.base_model.model.model.layers[: args.layers_on_host]:
        keep_on_host(layer)
    return model.train()


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(111)
    policy = model = build(args, device)
    if ranks > 1:
        torch.distributed.init_process_group("nccl" if cuda else "gloo")
        policy = nn.parallel.DistributedDataParallel(model, device_ids=[local] if cuda else None)
    trained = [p for p in model.parameters() if p.requires_grad]
    if args.optimizer == "adamw":
        optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    else:
        optimizer = Lion(trained, lr=1e-6, joint=args.optimizer == "lion-joint")
    torch.manual_seed(112 + rank)
    prompt = args.length // 2
    texts = torch.randint(0, WORDS, (16, 2 * args.pairs, args.length))
    texts = texts.pin_memory() if cuda else texts
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / f"answers-{rank}.jsonl").open("w") as log:
        for step in range(1, 1_000_000):
            tokens = texts[step % 16].to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16):
                with torch.no_grad(), model.disable_adapter():
                    before, _ = score(model, tokens, prompt)
                now, logits = score(policy, tokens, prompt)
            good, bad = (now - before).chunk(2)
            loss = -F.logsigmoid(BETA * (good - bad)).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if args.rouge_every and rank == 0 and step % args.rouge_every == 0:
                said, wanted = logits[: args.pairs].argmax(-1).tolist(), tokens[: args.pairs, prompt:].tolist()
                scores = [rouge(a, b) for a, b in zip(said, wanted, strict=True)]
                log.write(json.dumps({"step": step, "rouge": scores, "said": said}) + "\n")
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f} margin {(good - bad).mean().item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rank", type=int, default=16, help="of the adapters")
    parser.add_argument("--pairs", type=int, default=8, help="of each GPU")
    parser.add_argument("--length", type=int, default=512, help="words of a prompt and its answer, half each")
    parser.add_argument("--optimizer", choices=["adamw", "lion-each", "lion-joint"], default="adamw")
    parser.add_argument("--layers-on-host", type=int, default=0, help="whose activations lie there")
    parser.add_argument("--rouge-every", type=int, default=0, help="steps between those that rank 0 compares and logs")
    parser.add_argument("--out", type=Path, default=Path(), help="where the log goes")
    main(parser.parse_args())
