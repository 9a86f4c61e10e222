"""ResNet's first convolution over blocks of pixels is the same convolution."""

from __future__ import annotations

import pytest
import torch

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.rank import flops
from nightsweep.jobs.workloads import image

POINT = {"workload": "image", "model": "resnet50", "image_size": 64, "micro_batch": 2, "device": "cpu"}


@pytest.mark.parametrize("size", [(64, 64), (37, 40)])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_same_network(size, order):
    """In fp64: to the last digits, forward and backward, for edges odd and even; and the names of weights stay."""
    found = []
    for blocks in (False, True):
        torch.manual_seed(0)
        model = image.build_model(complete(POINT | {"space_to_depth": blocks}))[0].double().to(memory_format=order)
        torch.manual_seed(1)
        pixels = torch.randn(2, 3, *size, dtype=torch.float64).contiguous(memory_format=order)
        loss = image.loss(model, {"image": pixels, "label": torch.tensor([1, 2])})
        loss.backward()
        found.append((loss.detach(), {name: p.grad for name, p in model.named_parameters()}))
    (loss, gradients), (other, others) = found
    assert torch.allclose(loss, other, rtol=1e-12, atol=0)
    assert gradients.keys() == others.keys()
    assert all(torch.allclose(gradients[name], others[name], rtol=1e-6, atol=1e-10) for name in gradients)


def test_its_zeros_are_no_flops():
    plain, blocks = (complete(POINT | {"space_to_depth": on}) for on in (False, True))
    assert flops.count(blocks) == flops.count(plain)
    assert sum(flops.passes(blocks)[0].values()) > sum(flops.passes(plain)[0].values())
