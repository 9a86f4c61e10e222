"""The smallest model by each method, and the same weights in transformers' own."""

import torch
import transformers as hf

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.workloads.llm import workload as llm
from nightsweep.jobs.workloads.llm.configuration import configuration
from nightsweep.jobs.workloads.llm.nf4 import Nf4Linear, dequantise
from nightsweep.jobs.workloads.llm.weights import name_in_llama

NANO = {"workload": "llm", "model": "llama-nano", "micro_batch": 2, "seq_len": 24}


def built(**settings):
    return llm.build_model(complete(NANO | settings))[0]


def plain(state, **settings):
    """transformers' own model with these weights, in training mode."""
    config = configuration(complete(NANO | settings))
    config._attn_implementation = "eager"
    model = hf.LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model


def tokens(*shape, seed=0):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed))


def shake(model, seed=1):
    """Adapters begin at zero; give them values."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.05, generator=generator)


def whole_weight(layer):
    """The weight (out, in) that an NF4 layer multiplies with."""
    return dequantise(layer.weight, layer.scales, layer.factors, layer.mean, layer.pairs)


def merged_state(model, scale, adapters=True):
    """The plain model's weights, W + scale B A, and the adapters among them, by name."""
    trained = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters() if "lora_" in n}
    state = {}
    for name, module in model.named_modules():
        if isinstance(module, Nf4Linear):
            state[name_in_llama(f"{name}.weight")] = whole_weight(module)
        else:
            own = module.named_parameters(recurse=False)
            state |= {name_in_llama(f"{name}.{n}"): p.detach() for n, p in own if "lora_" not in name}
    for name, a in trained.items() if adapters else ():
        if "lora_A" in name:
            target = name_in_llama(name.replace(".lora_A.default.weight", ".weight"))
            state[target] = state[target] + scale * trained[name.replace("lora_A", "lora_B")] @ a
    return state, trained
