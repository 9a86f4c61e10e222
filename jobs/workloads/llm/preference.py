"""Direct preference optimisation, DPO (arXiv 2305.18290, equation 7): a model learns to prefer one text to another more
than a frozen reference does."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

from nightsweep.jobs.workloads.llm.head import next_tokens
from nightsweep.jobs.workloads.llm.model import Llama


def rewards(policy: torch.Tensor, reference: torch.Tensor, beta: float) -> torch.Tensor:
    """Implicit rewards (pairs, 2) of chosen and rejected, from log-probabilities (pairs, 2) of whole answers."""
    return beta * (policy - reference)


class PreferenceLlama(Llama):
    """Llama whose loss is DPO's. Ids and labels are (pairs, 2, S): chosen, rejected; all go through in one batch.

    The reference is the model with its adapters off or, with `copied`, a frozen copy of it."""

    def __init__(self, config: Any, chunks: int, beta: float, copied: bool) -> None:
        super().__init__(config, chunks)
        self.beta = beta
        self.reference = Llama(copy.deepcopy(config), chunks).requires_grad_(False) if copied else None
        self.margins: list[torch.Tensor] = []

    def forward(self, input_ids: Any = None, labels: Any = None, attention_mask: Any = None, position_ids: Any = None,
                **rest: Any) -> Any:  # fmt: skip
        ids, targets = input_ids.flatten(0, 1), next_tokens(labels.flatten(0, 1))
        with torch.no_grad(), adapters_off(self):
            reference = answers(self.reference or self, ids, targets)
        margin = rewards(answers(self, ids, targets), reference, self.beta).diff(dim=-1).neg()
        self.margins = [margin.detach().mean(), (margin.detach() > 0).float().mean()]
        return CausalLMOutputWithPast(loss=-F.logsigmoid(margin).mean())

    def facts(self) -> dict[str, Any]:
        """Reward margin (mean over pairs of chosen minus rejected) and share of pairs ranked rightly, of the last
        micro-batch before its step. Reads the device."""
        margin, accuracy = (float(value) for value in self.margins)
        return {"reward_margin": margin, "reward_accuracy": accuracy}


def answers(model: Llama, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Log-probabilities (pairs, 2) of the answers in sequences (2 pairs, S)."""
    out: torch.Tensor = model.lm_head(model.hidden_states(ids), targets, each=True)
    return out.sum(-1).view(-1, 2)


@contextmanager
def adapters_off(model: torch.nn.Module) -> Iterator[None]:
    """The model without what its adapters add. peft's own switch would also move requires_grad, which strategies have
    already looked at."""
    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False
