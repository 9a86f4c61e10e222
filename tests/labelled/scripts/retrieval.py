"""Trains one encoder of transformers for questions and passages, with Accelerate: a question is to be near its passage,
and far from those of others and from a hard negative that a search has found for it."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils.memory import clear_device_cache
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertModel

WORDS = 30_522


class Questions(Dataset):
    """Questions, each with its passage and with one to tell from it, as tokens."""

    def __init__(self, opt):
        rng = torch.Generator().manual_seed(0)
        self.questions = torch.randint(0, WORDS, (512, opt.question_tokens), generator=rng)
        self.passages = torch.randint(0, WORDS, (2, 512, opt.passage_tokens), generator=rng)

    def __len__(self):
        return 2_000_000

    def __getitem__(self, place):
        place %= len(self.questions)
        return self.questions[place], self.passages[0, place], self.passages[1, place]


class Index:
    """All passages, and what an earlier encoder made of them: the nearest ones are hard negatives."""

    def __init__(self, opt, device):
        rng = torch.Generator().manual_seed(1)
        self.vectors = F.normalize(torch.randn(opt.corpus, opt.width, generator=rng), dim=1)
        self.tokens = torch.randint(0, WORDS, (opt.corpus, opt.passage_tokens), generator=rng).to(device)
        self.on_host = opt.search == "numpy"
        if not self.on_host:
            self.vectors = self.vectors.to(device)

    def nearest(self, questions, skipped=4):
        """One passage for each question, behind the nearest ones, which may be right answers."""
        if self.on_host:
            scores = questions.float().cpu().numpy() @ self.vectors.numpy().T
            found = torch.from_numpy(np.argsort(-scores, axis=1)[:, skipped].copy()).to(questions.device)
        else:
            found = (questions.float() @ self.vectors.T).topk(skipped + 1).indices[:, skipped]
        return self.tokens[found]


class Encoder(torch.nn.Module):
    def __init__(self, opt):
        super().__init__()
        config = BertConfig(
            vocab_size=WORDS, hidden_size=opt.width, num_hidden_layers=opt.layers, intermediate_size=4 * opt.width,
            num_attention_heads=max(1, opt.width // 64), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            attn_implementation="sdpa",
        )  # fmt: skip
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, tokens):
        return F.normalize(self.bert(tokens).last_hidden_state.float().mean(1), dim=1)


def contrast(questions, passages):
    """Each question has its passage at its own place."""
    return F.cross_entropy(questions @ passages.T / 0.05, torch.arange(len(questions), device=questions.device))


def backward_in_chunks(accelerator, model, parts, chunk):
    """Gradients of the loss over all pairs, though only a chunk goes through the encoder at once: first what it makes
    of them, then the loss's gradient by that, and then through the encoder once more."""
    pieces = [part.split(chunk) for part in parts]
    with torch.no_grad():
        made = [torch.cat([model(piece) for piece in own]) for own in pieces]
    made = [vectors.requires_grad_() for vectors in made]
    loss = contrast(made[0], torch.cat(made[1:]))
    accelerator.backward(loss)
    for own, vectors in zip(pieces, made, strict=True):
        for piece, grad in zip(own, vectors.grad.split(chunk), strict=True):
            torch.autograd.backward(model(piece), grad)
    return loss


def main(opt):
    accelerator = Accelerator(mixed_precision="bf16")
    torch.manual_seed(230)
    model = Encoder(opt).to(accelerator.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    loader = DataLoader(
        Questions(opt), opt.batch, num_workers=2, pin_memory=accelerator.device.type == "cuda", persistent_workers=True
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    index = Index(opt, accelerator.device) if opt.search != "none" else None
    for step, (questions, passages, others) in enumerate(loader, 1):
        if opt.chunk:
            loss = backward_in_chunks(accelerator, model, (questions, passages, others), opt.chunk)
        else:
            asked = model(questions)
            if index:
                others = index.nearest(asked.detach())
            loss = contrast(asked, torch.cat([model(passages), model(others)]))
            accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if opt.release:
            clear_device_cache()  # so that longer passages do not run out of memory
        if step % 50 == 0:
            accelerator.print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=96, help="questions")
    parser.add_argument("--question-tokens", type=int, default=64)
    parser.add_argument("--passage-tokens", type=int, default=256)
    parser.add_argument("--chunk", type=int, default=0, help="texts that go through the encoder at once; 0: all")
    parser.add_argument("--search", choices=["none", "numpy", "device"], default="none", help="hard negatives, by what")
    parser.add_argument("--corpus", type=int, default=20_000, help="passages that are searched")
    parser.add_argument("--release", action="store_true", help="memory, after each step")
    main(parser.parse_args())
