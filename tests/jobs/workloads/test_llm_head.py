"""The loss in parts: PyTorch's own cross entropy and gradients, without its logits."""

import pytest
import torch
import torch.nn.functional as F

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.workloads.llm import workload as llm
from nightsweep.jobs.workloads.llm.head import LossHead, bounds, loss_and_gradient

NANO = {"workload": "llm", "model": "llama-nano", "micro_batch": 2, "seq_len": 24}


def both(chunks, dtype, frozen=False, autocast=False):
    """Loss and gradients of hidden states and weight, in parts and plainly."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 7, 32, generator=generator)
    targets = torch.randint(0, 50, (3, 7), generator=generator)
    targets[0, :4] = -100
    found = []
    for parts in (True, False):
        head = LossHead(32, 50, chunks, fuse=False)
        head.weight.data.copy_(torch.randn(50, 32, generator=torch.Generator().manual_seed(1)) * 0.3)
        head = head.to(dtype)
        head.weight.requires_grad_(not frozen)
        x = hidden.to(dtype).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            if parts:
                loss = head(x, targets)
            else:
                logits = head(x)
                wide = logits if dtype == torch.float64 else logits.float()
                loss = F.cross_entropy(wide.flatten(0, 1), targets.flatten())
        (loss * 3).backward()
        assert x.grad.dtype == dtype
        found.append((loss.detach(), x.grad, head.weight.grad))
    return found


@pytest.mark.parametrize("chunks", [1, 4, 21, 40])
def test_loss_and_gradients_are_those_of_the_whole(chunks):
    for a, b in zip(*both(chunks, torch.float64), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.float32, True), (torch.bfloat16, False), (torch.float16, False)]
)
def test_and_in_half_precision_within_its_grain(dtype, autocast):
    for a, b in zip(*both(4, dtype, autocast=autocast), strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=0.03, atol=0.02 * float(b.abs().max()))


def test_a_frozen_weight_gets_no_gradient():
    (_, x, weight), (_, expected, _) = both(4, torch.float64, frozen=True)
    assert weight is None
    torch.testing.assert_close(x, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_compiled_part_is_the_plain_one():
    logits, targets = torch.randn(100, 1000, device="cuda").bfloat16(), torch.arange(100, device="cuda")
    targets[5] = -100
    compiled = LossHead(8, 1000, 1, fuse=True).part(logits, targets)
    torch.testing.assert_close(compiled, loss_and_gradient(logits, targets), rtol=1e-2, atol=1e-3)


def test_the_logits_of_a_batch_are_never_whole():
    head, sizes = LossHead(8, 1000, 8, fuse=False), []
    part = head.part
    head.part = lambda logits, targets: sizes.append(logits.shape) or part(logits, targets)
    head(torch.randn(2, 32, 8, requires_grad=True), torch.zeros(2, 32, dtype=torch.int64)).backward()
    assert sizes == [(8, 1000)] * 8


def test_parts_are_of_one_size_and_none_is_empty():
    assert bounds(10, 4) == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert bounds(3, 8) == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("settings", [{}, {"method": "lora", "lora_rank": 4}, {"sequences": "packed"}])
def test_a_model_trains_alike_with_and_without_parts(settings):
    found = []
    for chunks in (0, 5):
        work = llm.build(complete(NANO | settings | {"loss_chunks": chunks}))
        items = [work.dataset[i] for i in (0, 1)]
        batch = work.prepare({name: torch.stack([item[name] for item in items]) for name in items[0]})
        loss = llm.loss(work.model, batch)
        loss.backward()
        found.append((loss.detach(), [p.grad for p in work.model.parameters() if p.requires_grad]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)
