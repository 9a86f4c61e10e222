"""Sorts news of many languages into stories that are not known before: a BERT of transformers reads two cuts of an
article, and either must say which story (a prototype) the other is about. A subclass of transformers' Trainer."""

import sys
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig, BertModel, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class Options:
    width: int = 768
    layers: int = 12
    length: int = 256
    vocabulary: int = 120_000
    stories: int = 3000
    norm: str = field(default="library", metadata={"help": "layer norms of the library, or as one would write them"})
    update: str = field(default="trainer", metadata={"help": "the optimizer of the trainer, or as one would write it"})


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        x = x.float()
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.weight * (x - mean) / torch.sqrt(variance + 1e-12) + self.bias


class AdamW(torch.optim.Optimizer):
    """As in the paper."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, (beta1, beta2) = self.state[p], group["betas"]
                if not state:
                    state |= {"step": 0, "mean": torch.zeros_like(p), "square": torch.zeros_like(p)}
                state["step"] += 1
                state["mean"] = beta1 * state["mean"] + (1 - beta1) * p.grad
                state["square"] = beta2 * state["square"] + (1 - beta2) * p.grad**2
                mean = state["mean"] / (1 - beta1 ** state["step"])
                square = state["square"] / (1 - beta2 ** state["step"])
                p.sub_(group["lr"] * (mean / (torch.sqrt(square) + group["eps"]) + group["weight_decay"] * p))


class Stories(nn.Module):
    def __init__(self, options):
        super().__init__()
        config = BertConfig(
            vocab_size=options.vocabulary, hidden_size=options.width, intermediate_size=4 * options.width,
            num_hidden_layers=options.layers, num_attention_heads=max(1, options.width // 64),
            max_position_embeddings=options.length, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.reader = BertModel(config, add_pooling_layer=False)
        self.prototypes = nn.Linear(options.width, options.stories, bias=False)
        if options.norm == "written":
            for module in list(self.modules()):
                for name, part in list(module.named_children()):
                    if isinstance(part, nn.LayerNorm):
                        setattr(module, name, Norm(options.width))

    def forward(self, input_ids):
        """Of articles' cuts (articles, 2, pieces), how near each is to each story."""
        x = self.reader(input_ids.flatten(0, 1)).last_hidden_state.mean(1)
        return F.linear(F.normalize(x, dim=1), F.normalize(self.prototypes.weight, dim=1)).unflatten(0, (-1, 2))


class Clusterer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        scores = model(inputs["input_ids"]).float()
        with torch.no_grad():
            shares = (scores / 0.05).softmax(2)
            for _ in range(3):  # stories are to be about equally large
                shares = shares / shares.sum(0, keepdim=True)
                shares = shares / shares.sum(2, keepdim=True)
        likely = (scores / 0.1).log_softmax(2)
        loss = -(shares * likely.flip(1)).sum(2).mean()
        return (loss, scores) if return_outputs else loss


class Articles(torch.utils.data.Dataset):
    def __init__(self, options):
        self.options = options

    def __len__(self):
        return 1_000_000

    def __getitem__(self, place):
        draw = torch.Generator().manual_seed(place)
        return {"input_ids": torch.randint(self.options.vocabulary, (2, self.options.length), generator=draw)}


def main():
    options, arguments = HfArgumentParser((Options, TrainingArguments)).parse_args_into_dataclasses(sys.argv[1:])
    torch.manual_seed(2011)
    model = Stories(options)
    optimizers = (None, None)
    if options.update == "written":
        model.to(arguments.device)
        optimizers = (AdamW(model.parameters(), arguments.learning_rate, weight_decay=arguments.weight_decay), None)
    Clusterer(model, arguments, train_dataset=Articles(options), optimizers=optimizers).train()


if __name__ == "__main__":
    main()
