"""Fine-tunes a small language model with transformers' Trainer."""

import sys
import time

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments  # isort: skip

import torch


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, place):
        ids = torch.randint(0, 256, (32,), generator=torch.Generator().manual_seed(place))
        return {"input_ids": ids, "labels": ids}


class Clock(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        print("\nown", time.time_ns(), flush=True)


size = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
model = LlamaForCausalLM(LlamaConfig(**size, num_attention_heads=4))
arguments = TrainingArguments(
    output_dir=sys.argv[1], per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=300, report_to=[],
    save_strategy="no", use_cpu=True, disable_tqdm=True, logging_strategy="no",
)  # fmt: skip
Trainer(model, arguments, train_dataset=Texts(), callbacks=[Clock()]).train()
