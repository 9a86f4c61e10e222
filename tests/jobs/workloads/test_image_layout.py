"""Layouts of images and weights, and padding within the convolution."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.workloads import image
from tests.jobs.workloads.image_batches import SIZE, TINY, batches

pytestmark = pytest.mark.usefixtures("image_cache")

LAYOUTS = [("nchw", False, False), ("nhwc", True, True), ("mixed", False, True)]


@pytest.mark.parametrize("pixels", ["float", "uint8"])
@pytest.mark.parametrize(("layout", "images", "_weights"), LAYOUTS)
def test_layout_of_images_is_that_of_their_strides(alone, layout, images, _weights, pixels):
    batch = batches({"layout": layout, "pixels": pixels, "resize_on": "device"}, 1)[0]["image"]
    assert batch.is_contiguous(memory_format=torch.channels_last) is images
    assert batch.is_contiguous() is not images


@pytest.mark.parametrize(("layout", "_images", "weights"), LAYOUTS)
def test_layout_of_weights_is_that_of_their_strides(layout, _images, weights):
    model = image.build(complete(TINY | {"model": "mobilenet_v2", "layout": layout})).model
    weight = model.mobilenet_v2.conv_stem.first_conv.convolution.weight
    assert weight.is_contiguous(memory_format=torch.channels_last) is weights
    assert weight.is_contiguous() is not weights


class Pads(TorchDispatchMode):
    """Counts paddings by copy."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten.constant_pad_nd.default
        return function(*args, **(kwargs or {}))


def test_fused_padding_is_the_same_network(alone):
    """In fp64: to the last digits, forward and backward; 47 copies of inputs are gone."""
    found = []
    for fused in (False, True):
        point = complete(TINY | {"model": "mobilenet_v2", "fused_padding": fused, "image_size": SIZE})
        torch.manual_seed(0)
        model = image.build_model(point)[0].double()
        torch.manual_seed(1)
        batch = {"image": torch.randn(2, 3, 37, 40).double(), "label": torch.tensor([1, 2])}
        with Pads() as pads:
            loss = image.loss(model, batch)
        loss.backward()
        found.append((pads.count, loss.detach(), [p.grad for p in model.parameters()]))
    (many, loss, gradients), (few, other, others) = found
    assert (many, few) == (52, 5)
    assert torch.allclose(loss, other, rtol=1e-12, atol=0)
    assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-12) for a, b in zip(gradients, others, strict=True))


def test_a_compiled_vit_has_no_mask_for_its_attention(monkeypatch):
    """Also with transformers as it was before it knew that none is needed; no fast kernel takes one."""
    monkeypatch.setattr("transformers.masking_utils._ignore_bidirectional_mask_sdpa", lambda *_, **__: False)
    masks = []

    def backend(graph, _inputs):
        for call in graph.graph.nodes:
            if call.target is torch.nn.functional.scaled_dot_product_attention:
                masks.append(call.kwargs.get("attn_mask"))
        return graph

    network = image.build_model(complete(TINY | {"model": "vit_s"}))[0]
    torch.compile(network, backend=backend)(pixel_values=torch.zeros(2, 3, SIZE, SIZE))
    assert masks == [None] * 12
