"""Trains a Llama from scratch with transformers' Trainer; every option of TrainingArguments is one of the script."""

import sys
from dataclasses import dataclass, field

import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


@dataclass
class Model:
    width: int = 1024
    layers: int = 16
    heads: int = 16
    length: int = 1024
    attention: str = field(default="sdpa", metadata={"help": "eager or sdpa"})
    words: int = field(
        default=0, metadata={"help": "words of a text that is tokenized when it is read; 0: ready tokens"}
    )


class Texts(torch.utils.data.Dataset):
    """Texts of random words, made into tokens as they are read; or tokens."""

    def __init__(self, model):
        self.model = model
        self.vocabulary = {f"word{n}": n for n in range(32_000)}
        self.names = list(self.vocabulary)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, place):
        if not self.model.words:
            ids = torch.randint(0, 32_000, (self.model.length,), generator=torch.Generator().manual_seed(place))
            return {"input_ids": ids, "labels": ids}
        text = " ".join(self.names[(place * 31 + n * 7919) % 32_000] for n in range(self.model.words))
        tokens = [self.vocabulary.get(word.strip().lower(), 0) for word in text.split(" ")][: self.model.length]
        ids = torch.tensor(tokens + [0] * (self.model.length - len(tokens)))
        return {"input_ids": ids, "labels": ids}


model, arguments = HfArgumentParser((Model, TrainingArguments)).parse_args_into_dataclasses(sys.argv[1:])
config = LlamaConfig(
    vocab_size=32_000, hidden_size=model.width, intermediate_size=model.width * 11 // 4 // 64 * 64,
    num_hidden_layers=model.layers, num_attention_heads=model.heads, max_position_embeddings=model.length,
    attn_implementation=model.attention, use_cache=False,
)  # fmt: skip
torch.manual_seed(1)
Trainer(LlamaForCausalLM(config), arguments, train_dataset=Texts(model)).train()
