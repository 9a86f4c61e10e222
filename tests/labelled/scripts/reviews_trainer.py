"""Trains a RoBERTa from scratch with transformers' Trainer to tell how many stars a review gave; texts are parted into
pieces of words as they are read, or are so already. Every option of TrainingArguments is one of the script."""

import random
import sys
from dataclasses import dataclass, field

import torch
from transformers import HfArgumentParser, RobertaConfig, RobertaForSequenceClassification, Trainer, TrainingArguments

STARS, BEGIN, PAD, END, UNKNOWN, FIRST = 5, 0, 1, 2, 3, 4
LETTERS = "etaoinshrdlucmfwypvbgkqjxz"


@dataclass
class Options:
    width: int = 768
    layers: int = 12
    length: int = 256
    vocabulary: int = 30_000
    words: int = field(default=0, metadata={"help": "words of a review that is parted as it is read; 0: ready pieces"})


class Pieces:
    """The longest piece that a word begins with, then that of what is left, and so on."""

    def __init__(self, size):
        rng = random.Random(21)
        made = dict.fromkeys(LETTERS)
        while len(made) < size // 2 - FIRST:
            made["".join(rng.choices(LETTERS, k=rng.randint(2, 5)))] = None
        names = [*made, *(f"##{piece}" for piece in made)]
        self.numbers = {name: number for number, name in enumerate(names, FIRST)}

    def of_word(self, word):
        found, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = word[start:end] if start == 0 else f"##{word[start:end]}"
                if piece in self.numbers:
                    found.append(self.numbers[piece])
                    start = end
                    break
            else:
                return [UNKNOWN]
        return found

    def __call__(self, text, length):
        found = [BEGIN]
        for word in text.lower().split():
            found += self.of_word("".join(letter for letter in word if letter.isalpha()))
            if len(found) >= length - 1:
                break
        found = [*found[: length - 1], END]
        return found + [PAD] * (length - len(found))


class Reviews(torch.utils.data.Dataset):
    def __init__(self, options):
        self.options = options
        self.pieces = Pieces(options.vocabulary) if options.words else None
        rng = random.Random(22)
        self.known = ["".join(rng.choices(LETTERS, k=rng.randint(3, 11))) for _ in range(20_000)]

    def __len__(self):
        return 1_000_000

    def __getitem__(self, place):
        options, stars = self.options, place * 7 % STARS
        if self.pieces is None:
            draw = torch.Generator().manual_seed(place)
            return {"input_ids": torch.randint(FIRST, options.vocabulary, (options.length,), generator=draw)} | {
                "labels": stars
            }
        rng = random.Random(place)
        text = " ".join(rng.choices(self.known, k=options.words))
        ids = torch.tensor(self.pieces(text, options.length))
        return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": stars}


def main():
    options, arguments = HfArgumentParser((Options, TrainingArguments)).parse_args_into_dataclasses(sys.argv[1:])
    config = RobertaConfig(
        vocab_size=options.vocabulary, hidden_size=options.width, intermediate_size=4 * options.width,
        num_hidden_layers=options.layers, num_attention_heads=max(1, options.width // 64), num_labels=STARS,
        max_position_embeddings=options.length + PAD + 1, pad_token_id=PAD, bos_token_id=BEGIN, eos_token_id=END,
        type_vocab_size=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(1711)
    model = RobertaForSequenceClassification(config)
    Trainer(model, arguments, train_dataset=Reviews(options)).train()


if __name__ == "__main__":
    main()
