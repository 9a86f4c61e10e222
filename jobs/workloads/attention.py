"""PyTorch's attention for transformers' models, without the masks that they make where none is needed."""

from __future__ import annotations

import transformers as hf
from transformers.integrations.sdpa_attention import sdpa_attention_forward

UNMASKED = "sdpa_unmasked"
"""The name to give as a configuration's `_attn_implementation`: causal, where the model is, by the kernel's own flag.
transformers makes no mask for a name it has no mask function of. For Llama it would look into the positions, to find
out whether one is needed, and wait for the device in every forward pass. For a ViT that is being compiled older
releases make one that hides nothing, and that no fast kernel takes."""

hf.AttentionInterface.register(UNMASKED, sdpa_attention_forward)
