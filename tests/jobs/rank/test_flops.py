"""FLOPs of a step: the count against formulas and published numbers, and that counting leaves no trace."""

from collections import Counter

import pytest
import torch
from msgspec import structs

from nightsweep.jobs.point.llama import SHAPES
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.rank import flops
from nightsweep.jobs.record.launch_files import Flops
from nightsweep.jobs.workloads import make as workloads
from nightsweep.jobs.workloads.llm import workload as llm

NANO = {"workload": "llm", "model": "llama-nano", "micro_batch": 2, "seq_len": 64}


def products_of_llama(model, sequences, tokens):
    """2 x weights x tokens of the linear layers, and 4 L d s^2 a sequence of attention, which masks but halves not."""
    hidden, layers, heads, kv_heads, intermediate, vocabulary = SHAPES[model]
    attention = 2 * hidden * hidden + 2 * hidden * hidden * kv_heads // heads
    weights = layers * (attention + 3 * hidden * intermediate) + hidden * vocabulary
    return 2 * weights * sequences * tokens, 4 * layers * hidden * tokens**2 * sequences


def by_operator(point):
    """FLOPs of a micro-batch by torch's operator."""
    found = flops.count_micro_batch(point)
    return Counter(found.forward) + Counter(found.backward)


def test_a_linear_layer():
    """A weight of 3 x 5 on 7 rows; the gradient of its input is asked for once, that of its weight always."""
    layer = torch.nn.Linear(5, 3)
    for asks, products in ((False, 1), (True, 2)):
        x = torch.zeros(7, 5, requires_grad=asks)
        forward, backward = flops.count_passes(lambda x=x: layer(x).sum())
        assert forward.total() == 2 * 7 * 5 * 3 and backward.total() == products * 2 * 7 * 5 * 3


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_a_grouped_convolution_costs_the_same_for_each_gradient(groups):
    layer = torch.nn.Conv2d(8, 16, 3, groups=groups, bias=False)
    forward, backward = flops.count_passes(lambda: layer(torch.zeros(2, 8, 10, 10, requires_grad=True)).sum())
    assert forward.total() == 2 * 2 * 16 * 8 * 8 * 9 * (8 // groups)
    assert backward.total() == 2 * forward.total()


@pytest.mark.parametrize(("model", "sequences", "tokens"), [("llama-nano", 2, 64), ("llama-160m", 1, 512)])
def test_llama_is_its_formula(model, sequences, tokens):
    linear, attention = products_of_llama(model, sequences, tokens)
    point = complete(NANO | {"model": model, "micro_batch": sequences, "seq_len": tokens})
    counted = flops.count(point)
    assert counted.forward == linear + attention
    assert counted.backward == 2 * counted.forward
    assert counted.step == counted.hardware_step == 3 * (linear + attention)
    assert by_operator(point) == {"aten.mm": 3 * linear, "aten.bmm": 3 * attention}


@pytest.mark.parametrize(
    ("model", "multiply_adds"),
    # of 1000 classes: arXiv 1801.04381, table 4; He et al. (3.8e9) with the stride in the 3 x 3 layer, torchvision's
    # resnet50 (4.09e9). Transformers' MobileNet has the paper's layers.
    [("mobilenet_v2", 0.300e9), ("resnet50", 4.09e9), ("vit_s", 4.6e9)],
)
def test_image_networks_are_near_the_published_counts(model, multiply_adds):
    counted = flops.count(complete({"workload": "image", "model": model, "micro_batch": 1, "image_size": 224}))
    assert counted.forward == pytest.approx(2 * multiply_adds, rel=0.02)
    # The first layer's input needs no gradient, everything else both.
    assert 1.95 < counted.backward / counted.forward < 2


def test_micro_batches_and_accumulation_scale_the_step():
    one = flops.count(complete(NANO))
    assert flops.count(complete(NANO | {"grad_accum": 3})).step == 3 * one.step
    larger = complete(NANO | {"micro_batch": 6})
    assert flops.count(larger).step == 3 * one.step
    assert by_operator(larger) == {name: 3 * value for name, value in by_operator(complete(NANO)).items()}


def test_frozen_weights_need_no_gradient_of_their_own():
    full, lora = (flops.count(complete(NANO | {"method": method})) for method in ("full", "lora"))
    adapters = lora.forward - full.forward
    assert 0 < adapters < 0.1 * full.forward
    linear, attention = products_of_llama("llama-nano", 2, 64)
    # Backward, a frozen layer costs its input's gradient, once; attention and the adapters cost both of theirs.
    assert lora.backward == pytest.approx(linear + 2 * attention + 2 * adapters, rel=0.05)
    assert lora.backward < linear + 2 * attention + 2 * adapters


@pytest.mark.parametrize("method", ["full", "lora"])
def test_checkpointing_costs_hardware_flops_only(method):
    plain = flops.count(complete(NANO | {"method": method}))
    again = flops.count(complete(NANO | {"method": method, "activation_checkpointing": True}))
    assert structs.replace(again, hardware_step=0) == structs.replace(plain, hardware_step=0)
    assert plain.step < again.hardware_step < plain.step + 1.1 * plain.forward


@pytest.mark.parametrize("sequences", ["windows", "packed"])
def test_the_loss_in_parts_and_packing_are_the_same_products(sequences):
    plain, parts = (flops.count(complete(NANO | {"sequences": sequences, "loss_chunks": n})) for n in (0, 5))
    assert plain == parts == flops.count(complete(NANO))
    point = complete(NANO | {"sequences": sequences, "loss_chunks": 5})
    assert sum(flops.passes(point), Counter()).total() == plain.step


def test_dpo_is_four_forward_passes_and_two_backward_ones_a_pair():
    full, lora = (flops.count(complete(NANO | {"method": method})) for method in ("full", "lora"))
    dpo, adapters = (flops.count(complete(NANO | {"method": method})) for method in ("dpo", "dpo_qlora"))
    assert (dpo.forward, dpo.backward) == (4 * full.forward, 2 * full.backward)
    assert adapters.forward == 2 * (full.forward + lora.forward)
    assert adapters.backward == 2 * lora.backward
    in_parts = flops.count(complete(NANO | {"method": "dpo", "loss_chunks": 5}))
    head = 2 * 2 * 2 * 64 * 128 * 512
    assert in_parts.step == dpo.step and in_parts.hardware_step == dpo.step + head


@pytest.mark.parametrize("method", ["qlora", "qat"])
def test_rounding_adds_no_products(method):
    point = complete(NANO | {"method": method})
    counted = flops.count(point)
    assert counted.step == sum(flops.passes(point), Counter()).total()


def test_counting_draws_no_random_numbers_and_leaves_no_mode_behind():
    point = complete(NANO | {"method": "lora", "activation_checkpointing": True})
    work = workloads.build(point)
    before, weights = torch.get_rng_state(), [p.clone() for p in work.model.parameters()]
    flops.count(point)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(p, w) and p.grad is None for p, w in zip(work.model.parameters(), weights, strict=True))
    assert type(torch.zeros(1)) is torch.Tensor and torch.zeros(1).device.type == "cpu"


def test_what_cannot_be_counted_has_a_reason(monkeypatch):
    def break_(*_):
        raise ValueError("no such shape\nand more")

    monkeypatch.setattr(llm, "loss", break_)
    assert flops.count(complete(NANO)) == Flops(reason="ValueError: no such shape")


@pytest.mark.parametrize("method", ["full", "lora", "dpo", "dpo_lora"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"activation_checkpointing": True},
        {"activation_checkpointing": True, "checkpoint_every": 3, "model": "llama-160m"},
    ],
)
def test_two_layers_tell_of_all(method, settings):
    point = complete(NANO | {"method": method} | settings)
    assert flops.passes(point) == flops.passes_of(point, SHAPES[point.model].num_hidden_layers)
