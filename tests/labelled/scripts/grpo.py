"""Tunes a language model by group relative policy optimization (GRPO): it answers each prompt several times, and learns
from which of the answers were better than the others. Rewards tell how near an answer is to the one that was wanted."""

import argparse
import copy

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

WORDS, FORMS, BETA = 32_000, 640, 0.04  # forms of a word count as the same


def distances_each(answers, wanted):
    """Edits that make each answer the one that was wanted (Levenshtein), answer by answer."""
    found = []
    for answer, target in zip(answers, wanted, strict=True):
        before = list(range(len(target) + 1))
        for i, word in enumerate(answer, 1):
            row = [i]
            for j, other in enumerate(target, 1):
                row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (word != other)))
            before = row
        found.append(before[-1])
    return np.array(found)


def distances_joint(answers, wanted):
    """The same of all answers at once."""
    answers, wanted = np.array(answers), np.array(wanted)
    steps = np.arange(wanted.shape[1] + 1)
    before = np.broadcast_to(steps, (len(answers), len(steps)))
    for i in range(answers.shape[1]):
        row = np.empty_like(before)
        row[:, 0] = i + 1
        row[:, 1:] = np.minimum(before[:, 1:] + 1, before[:, :-1] + (answers[:, i, None] != wanted))
        before = np.minimum.accumulate(row - steps, axis=1) + steps  # words that are put in
    return before[:, -1]


class Rollouts:
    """Prompts, and what the policy answers to them; or answers that were recorded before."""

    def __init__(self, args, device):
        rng = torch.Generator().manual_seed(151)
        self.args, self.rng = args, torch.Generator(device).manual_seed(152)
        self.prompts = torch.randint(0, WORDS, (16, args.prompts, args.prompt_length), generator=rng).to(device)
        self.wanted = torch.randint(0, WORDS, (16, args.prompts, args.answer_length), generator=rng)

    @torch.no_grad()
    def answers(self, policy, prompts):
        args = self.args
        if args.recorded:
            shape = len(prompts) * args.group, args.answer_length
            return torch.randint(0, WORDS, shape, generator=self.rng, device=prompts.device)
        texts = prompts.repeat_interleave(args.group, 0)
        lots = texts.split(args.group) if args.generate == "each" else [texts]
        length = {"min_new_tokens": args.answer_length, "max_new_tokens": args.answer_length, "pad_token_id": 0}
        policy.eval()
        made = [
            policy.generate(
                lot, attention_mask=torch.ones_like(lot), do_sample=True, top_k=0, use_cache=args.cache, **length
            )
            for lot in lots
        ]
        policy.train()
        return torch.cat(made)[:, args.prompt_length :]

    def __call__(self, policy, step):
        place = step % len(self.prompts)
        prompts, wanted = self.prompts[place], self.wanted[place].repeat_interleave(self.args.group, 0)
        answers = self.answers(policy, prompts)
        distances = {"each": distances_each, "joint": distances_joint}[self.args.rewards]
        rewards = 1 - distances((answers // FORMS).tolist(), (wanted // FORMS).tolist()) / self.args.answer_length
        grouped = torch.tensor(rewards, dtype=torch.float32).view(-1, self.args.group)
        advantages = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
        texts = torch.cat([prompts.repeat_interleave(self.args.group, 0), answers], 1)
        return texts, advantages.flatten().to(answers.device, non_blocking=True)


def log_probabilities(model, texts, length):
    """Of the last `length` words of each text."""
    logits = model(input_ids=texts, use_cache=False, logits_to_keep=length + 1).logits[:, :-1].float()
    return logits.log_softmax(-1).gather(-1, texts[:, -length:, None])[..., 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=6, help="of a step")
    parser.add_argument("--group", type=int, default=8, help="answers to a prompt")
    parser.add_argument("--prompt-length", type=int, default=384)
    parser.add_argument("--answer-length", type=int, default=24)
    parser.add_argument("--no-cache", dest="cache", action="store_false", help="of keys and values, in generation")
    parser.add_argument(
        "--generate", choices=["each", "joint"], default="joint", help="answers to the prompts of a step"
    )
    parser.add_argument("--recorded", action="store_true", help="learn from answers that are there")
    parser.add_argument("--rewards", choices=["each", "joint"], default="joint", help="computed by answer, or together")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(150)
    config = Qwen2Config(
        vocab_size=WORDS, hidden_size=args.width, intermediate_size=args.width * 4, num_hidden_layers=args.layers,
        num_attention_heads=max(1, args.width // 64), num_key_value_heads=max(1, args.width // 256),
        max_position_embeddings=args.prompt_length + args.answer_length, bos_token_id=None, eos_token_id=None,
        tie_word_embeddings=True,
    )  # fmt: skip
    with device:
        policy = Qwen2ForCausalLM(config).to(torch.bfloat16)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, weight_decay=0.0, fused=True)
    rollouts = Rollouts(args, device)
    for step in range(1, 1_000_000):
        texts, advantages = rollouts(policy, step)
        now = log_probabilities(policy, texts, args.answer_length)
        with torch.no_grad():
            before = log_probabilities(reference, texts, args.answer_length)
        gap = before - now
        loss = (BETA * (torch.exp(gap) - gap - 1) - now * advantages[:, None]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
