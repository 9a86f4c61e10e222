"""transformers' Llama with the loss in parts, and without a mask."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from transformers.modeling_outputs import CausalLMOutputWithPast

from nightsweep.jobs.workloads.attention import UNMASKED
from nightsweep.jobs.workloads.llm.head import LossHead, next_tokens


class Llama(hf.LlamaForCausalLM):  # type: ignore[misc]
    """LlamaForCausalLM. `chunks` > 0: its loss in so many parts; `fuse`: each compiled."""

    def __init__(self, config: Any, chunks: int = 0, fuse: bool = False) -> None:
        config._attn_implementation = UNMASKED
        super().__init__(config)
        self.loss_type = "ForCausalLM"  # which transformers reads from the name of the class
        self.chunks = chunks
        self.lm_head = LossHead(config.hidden_size, config.vocab_size, chunks, fuse)

    def hidden_states(self, ids: torch.Tensor, mask: Any = None, positions: Any = None) -> torch.Tensor:
        """Hidden states (N, S, H) after the last norm, of token ids (N, S)."""
        out: torch.Tensor = self.model(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
        return out

    def forward(self, input_ids: Any = None, labels: Any = None, attention_mask: Any = None, position_ids: Any = None,
                **rest: Any) -> Any:  # fmt: skip
        if self.chunks == 0 or labels is None:
            return super().forward(
                input_ids=input_ids, labels=labels, attention_mask=attention_mask, position_ids=position_ids, **rest
            )
        hidden = self.hidden_states(input_ids, attention_mask, position_ids)
        return CausalLMOutputWithPast(loss=self.lm_head(hidden, next_tokens(labels)))
