"""NF4, int4 and float8 numbers: near what they stand for, and as they are written out here."""

import pytest
import torch
import torch.nn.functional as F

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.workloads import make as workloads
from nightsweep.jobs.workloads.llm import tuning
from nightsweep.jobs.workloads.llm import workload as llm
from nightsweep.jobs.workloads.llm.nf4 import Nf4Linear
from tests.jobs.workloads.llama_nano import NANO, built, tokens, whole_weight


def test_nf4_numbers_are_torchaos_and_near_the_weight():
    from torchao.quantization import NF4Tensor

    linear = torch.nn.Linear(512, 256, bias=False)
    for dtype in (torch.float32, torch.bfloat16):
        weight = linear.weight.detach().to(dtype)
        layer = Nf4Linear(linear, dtype)
        layer.quantise(weight)
        torch.testing.assert_close(whole_weight(layer), NF4Tensor.from_tensor(weight, 64, 256).get_original_weight())
        assert 0.02 < (whole_weight(layer) - weight).norm() / weight.norm() < 0.12
    held = sum(p.numel() * p.element_size() for p in layer.parameters())
    assert held * 8 / linear.weight.numel() == pytest.approx(4.13, abs=0.01)


def test_nf4_takes_and_gives_gradients_in_the_autocast_format():
    layer = Nf4Linear(torch.nn.Linear(128, 128, bias=False), torch.bfloat16)
    layer.quantise(torch.randn(128, 128).bfloat16())
    x = torch.randn(3, 128, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    y.sum().backward()
    assert y.dtype == torch.bfloat16 and x.grad.dtype == torch.float32
    torch.testing.assert_close(x.grad, whole_weight(layer).sum(0).float().expand(3, -1), rtol=0.02, atol=0.1)


def rounded(x, scale, zero, low, high):
    """x to the grid and back, its gradient passed where nothing is clamped (straight-through)."""
    steps = (
        x * (1 / scale)
    ).detach().round() + zero  # by the inverse: the largest weight is at 7.5, which rounds either way
    kept = (steps >= low) & (steps <= high)
    value = (steps.clamp(low, high) - zero) * scale
    return value + (x - x.detach()) * kept


def quantised_linear(x, weight, group):
    """int8 activations, asymmetric by token; int4 weights, symmetric by group."""
    low = x.detach().amin(-1, keepdim=True).clamp(max=0)
    high = x.detach().amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 255).clamp(min=torch.finfo(torch.float32).eps)
    zero = (-128 - (low / scale).round()).clamp(-128, 127)
    groups = weight.view(-1, group)
    step = (groups.detach().abs().amax(-1, keepdim=True) / 7.5).clamp(min=torch.finfo(torch.float32).eps)
    return F.linear(rounded(x, scale, zero, -128, 127), rounded(groups, step, 0, -8, 7).view_as(weight))


def test_qat_rounds_as_written_out_and_passes_gradients_through():
    model = built(method="qat")
    layer = model.model.layers[1].mlp.down_proj
    assert layer.weight.shape == (128, 384)
    weight = layer.weight.detach().clone().requires_grad_()
    xs = [torch.randn(2, 5, 384, generator=torch.Generator().manual_seed(3), requires_grad=True) for _ in range(2)]
    outer = torch.randn(2, 5, 128)
    (layer(xs[0]) * outer).sum().backward()
    (quantised_linear(xs[1], weight, 128) * outer).sum().backward()
    torch.testing.assert_close(layer(xs[0]), quantised_linear(xs[1], weight, 128), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.weight.grad, weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(xs[0].grad, xs[1].grad, rtol=1e-4, atol=1e-4)


def test_a_qat_model_converts_to_int4_weights_that_answer_alike():
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, PerGroup, quantize_
    from torchao.quantization.qat import QATConfig

    model = built(method="qat").eval()
    ids = tokens(1, 24)
    linears = [m for m in model.model.layers.modules() if hasattr(m, "weight_fake_quantizer")]
    assert len(linears) == 4 * 7
    with torch.no_grad():
        prepared = model(input_ids=ids).logits
        base = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(128))
        quantize_(model, QATConfig(base, step="convert"), lambda m, _: hasattr(m, "weight_fake_quantizer"))
        converted = model(input_ids=ids).logits
    assert not any(hasattr(m, "weight_fake_quantizer") for m in model.modules())
    plainly = built()(input_ids=ids).logits.detach()
    assert (converted - prepared).norm() < 0.2 * (plainly - prepared).norm()


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_float8_products_are_near_and_the_head_is_left_alone(recipe):
    model, other = built(), built()
    tuning.to_float8(other.model.layers, recipe, emulate=True)
    assert sum(type(m).__name__ == "Float8Linear" for m in other.modules()) == 4 * 7
    ids = tokens(2, 16)
    losses = [llm.loss(m, {"tokens": ids}) for m in (model, other)]
    for loss in losses:
        loss.backward()
    assert losses[0].item() != losses[1].item()
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=0.01)
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        assert F.cosine_similarity(a.grad.flatten(), b.grad.flatten(), dim=0) > 0.98, name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_float8_on_a_gpu_is_near_bf16(recipe):
    losses = []
    for float8 in ("none", recipe):
        point = complete(NANO | {"seq_len": 64, "precision": "bf16_pure", "float8": float8})
        work = workloads.build(point, torch.device("cuda"))
        loss = llm.loss(work.model, {"tokens": tokens(2, 64).cuda()})
        loss.backward()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
