"""Trains a BERT of transformers on masked words in a plain loop, on one GPU or with DDP."""

import argparse
import contextlib
import json
import os
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForMaskedLM

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=24)
parser.add_argument("--width", type=int, default=1024)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--length", type=int, default=512)
parser.add_argument("--rank1-length", type=int, help="that of rank 1, where its texts are longer or shorter")
parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
parser.add_argument("--attention", choices=["eager", "sdpa"], default="sdpa")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--texts", action="store_true", help="samples are texts, which are tokenized as a batch is made")
parser.add_argument("--read-ms", type=float, default=0, help="what storage takes to read a sample")
parser.add_argument("--offload-activations", action="store_true", help="keep them on the host until they are needed")
parser.add_argument(
    "--samples-every", type=int, default=0, help="steps between files of guessed words, which rank 0 writes"
)
parser.add_argument("--out", default="out")
given = parser.parse_args()

VOCABULARY, MASK, MASKED = 30_000, 4, 0.15
ranks, rank, local = (int(os.environ.get(name, default)) for name, default in
                      (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))  # fmt: skip
device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
if ranks > 1:
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
length = given.rank1_length if rank == 1 and given.rank1_length else given.length
words = [f"word{n}" for n in range(VOCABULARY)]


class Samples(torch.utils.data.Dataset):
    """Random words: their numbers, or a text of compounds."""

    def __len__(self):
        return 1_000_000

    def __getitem__(self, place):
        if given.read_ms:
            time.sleep(given.read_ms / 1e3)
        numbers = torch.randint(5, VOCABULARY, (length,), generator=torch.Generator().manual_seed(place))
        if not given.texts:
            return numbers
        row = [words[n] for n in numbers.tolist()]
        return " ".join("".join(row[n : n + 8]) for n in range(0, length, 8))


class Tokenizer:
    """Finds the longest known piece of what is left of a word, again and again."""

    def __init__(self):
        self.pieces = {piece: n for n, piece in enumerate(words)}

    def __call__(self, text):
        found = []
        for word in text.lower().split(" "):
            begin = 0
            while begin < len(word):
                end = len(word)
                while end > begin + 1 and word[begin:end] not in self.pieces:
                    end -= 1
                found.append(self.pieces.get(word[begin:end], 0))
                begin = end
        return torch.tensor(found[:length])


def collate(samples):
    """Tokens with some of them masked, and what was there; -100 elsewhere."""
    tokens = torch.stack([tokenizer(sample) if given.texts else sample for sample in samples])
    masked = torch.rand(tokens.shape) < MASKED
    return tokens.masked_fill(masked, MASK), tokens.masked_fill(~masked, -100)


def write_samples(inputs, logits, labels):
    """Each text and the likeliest words for what was masked, in a line."""
    guesses = logits.detach().cpu().float().topk(5).indices.tolist()
    with Path(given.out, "samples.jsonl").open("a") as file:
        for text, guessed, truth in zip(inputs.tolist(), guesses, labels.tolist(), strict=True):
            found = {words[t]: [words[n] for n in best] for best, t in zip(guessed, truth, strict=True) if t >= 0}
            file.write(json.dumps({"text": " ".join(words[n] for n in text), "found": found}) + "\n")


tokenizer = Tokenizer()
torch.manual_seed(1)
config = BertConfig(
    vocab_size=VOCABULARY, hidden_size=given.width, num_hidden_layers=given.layers,
    num_attention_heads=given.width // 64, intermediate_size=4 * given.width,
    max_position_embeddings=max(given.length, given.rank1_length or 0), hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0, attn_implementation=given.attention,
)  # fmt: skip
with device:
    model = BertForMaskedLM(config)
model.train()
if ranks > 1:
    model = DistributedDataParallel(model, device_ids=[local] if device.type == "cuda" else None)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
loader = torch.utils.data.DataLoader(
    Samples(), given.batch, num_workers=given.workers, collate_fn=collate, pin_memory=device.type == "cuda"
)
Path(given.out).mkdir(parents=True, exist_ok=True)
for micro, (inputs, labels) in enumerate(loader):
    inputs, labels = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
    kept = torch.autograd.graph.save_on_cpu(pin_memory=True) if given.offload_activations else contextlib.nullcontext()
    with kept, torch.autocast(device.type, torch.bfloat16, enabled=given.precision == "bf16"):
        found = model(input_ids=inputs, labels=labels)
    (found.loss / given.accumulate).backward()
    if (micro + 1) % given.accumulate:
        continue
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    step = (micro + 1) // given.accumulate
    if rank == 0 and given.samples_every and step % given.samples_every == 0:
        write_samples(inputs, found.logits, labels)
    if step % 50 == 0:
        print(step, found.loss.item())
