"""Methods of tuning: losses and gradients against the same thing written out with transformers' own model."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.workloads import make as workloads
from nightsweep.jobs.workloads.llm import workload as llm
from tests.jobs.workloads.llama_nano import NANO, built, merged_state, plain, shake, tokens


def test_full_training_is_transformers_own_loss_and_gradient():
    model = built()
    reference = plain(model.state_dict())
    ids = tokens(2, 24)
    loss = llm.loss(model, {"tokens": ids})
    expected = reference(input_ids=ids, labels=ids).loss
    loss.backward()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for (name, a), b in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_windows_make_no_mask_and_look_at_no_values(monkeypatch):
    from transformers import masking_utils

    def refuse(*_, **__):
        raise AssertionError("looked into the positions")

    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", refuse)
    assert llm.loss(built(), {"tokens": tokens(1, 16)}).isfinite()


@pytest.mark.parametrize("method", ["lora", "qlora"])
@pytest.mark.parametrize(("targets", "alpha", "scale"), [("all", 0, 2.0), ("qv", 12, 3.0)])
def test_adapters_are_w_plus_scaled_b_a(method, targets, alpha, scale):
    model = built(method=method, lora_rank=4, lora_alpha=alpha, lora_targets=targets)
    shake(model)
    state, trained = merged_state(model, scale)
    ids = tokens(2, 24)
    loss = llm.loss(model, {"tokens": ids})
    loss.backward()
    expected = functional_call(plain(built().state_dict()), state, kwargs={"input_ids": ids, "labels": ids}).loss
    gradients = torch.autograd.grad(expected, list(trained.values()))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    own = dict(model.named_parameters())
    assert {n for n, p in own.items() if p.requires_grad} == trained.keys()
    assert len(trained) == 2 * 4 * {"all": 7, "qv": 2}[targets]
    for name, gradient in zip(trained, gradients, strict=True):
        torch.testing.assert_close(own[name].grad, gradient, rtol=1e-4, atol=1e-6, msg=name)


def log_probabilities(model, state, ids, labels):
    """Of the answers (N,): the plain model's log-softmax at the labels, summed."""
    logits = functional_call(model, state, kwargs={"input_ids": ids}).logits[:, :-1]
    wanted = labels[:, 1:]
    taken = logits.log_softmax(-1).gather(-1, wanted.clamp(min=0)[..., None])[..., 0]
    return (taken * (wanted != -100)).sum(-1)


@pytest.mark.parametrize("method", ["dpo", "dpo_lora", "dpo_qlora"])
@pytest.mark.parametrize("chunks", [0, 3])
def test_dpo_is_its_formula(method, chunks):
    model = built(method=method, dpo_beta=0.3, loss_chunks=chunks, **({} if method == "dpo" else {"lora_rank": 4}))
    ids = tokens(3, 2, 24)
    ids[:, 1, :12] = ids[:, 0, :12]
    labels = ids.clone()
    labels[..., :12] = -100
    at_start = llm.loss(model, {"tokens": ids, "labels": labels})
    assert at_start.item() == pytest.approx(0.693147, rel=1e-4)
    base, _ = merged_state(model, 2.0, adapters=False) if method != "dpo" else (dict(built().state_dict()), None)
    shake(model)
    if method == "dpo":
        generator = torch.Generator().manual_seed(2)
        for name, parameter in model.named_parameters():
            if "reference" not in name:
                parameter.data.add_(0.02 * torch.randn(parameter.shape, generator=generator))
        trained = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters() if "reference" not in n}
        state = trained
    else:
        state, trained = merged_state(model, 2.0)
    reference = plain(built().state_dict())
    policy = log_probabilities(reference, state, ids.flatten(0, 1), labels.flatten(0, 1)).view(3, 2)
    frozen = log_probabilities(reference, base, ids.flatten(0, 1), labels.flatten(0, 1)).view(3, 2).detach()
    margin = 0.3 * ((policy[:, 0] - frozen[:, 0]) - (policy[:, 1] - frozen[:, 1]))
    expected = -F.logsigmoid(margin).mean()
    gradients = torch.autograd.grad(expected, list(trained.values()))
    loss = llm.loss(model, {"tokens": ids, "labels": labels})
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    own = dict(model.named_parameters())
    assert {n for n, p in own.items() if p.grad is not None} == trained.keys()
    for name, gradient in zip(trained, gradients, strict=True):
        torch.testing.assert_close(own[name].grad, gradient, rtol=1e-3, atol=1e-6, msg=name)
    facts = (model if method == "dpo" else model.get_base_model()).facts()
    assert facts["reward_margin"] == pytest.approx(margin.mean().item(), rel=1e-3)
    assert facts["reward_accuracy"] == pytest.approx((margin > 0).float().mean().item())


@pytest.mark.parametrize("method", ["full", "lora", "qlora", "dpo"])
def test_recomputing_some_layers_changes_no_gradient(method):
    more = {} if method in ("full", "dpo") else {"lora_rank": 4}
    models = [
        built(method=method, **more, **ac) for ac in ({}, {"activation_checkpointing": True, "checkpoint_every": 2})
    ]
    batch = {"tokens": tokens(1, 2, 16)} if method == "dpo" else {"tokens": tokens(2, 16)}
    counts = []
    for model in models:
        shake(model)
        calls = []
        layers = [m for n, m in model.named_modules() if n.endswith(".self_attn") and "reference" not in n]
        for layer in layers:
            layer.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        llm.loss(model, batch).backward()
        counts.append(len(calls))
    assert counts == [4, 6]
    for a, b in itertools.zip_longest(*(m.parameters() for m in models)):
        if a.requires_grad:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-7)


def test_bf16_pure_holds_everything_in_bf16_and_mixed_holds_only_what_is_frozen():
    def kinds(**settings):
        model = built(**settings)
        return [
            {p.dtype for p in model.parameters() if p.requires_grad is trained and p.is_floating_point()}
            for trained in (True, False)
        ]

    half = torch.bfloat16
    assert kinds(precision="bf16_pure") == [{half}, set()]
    assert kinds(precision="bf16") == [{torch.float32}, set()]
    assert kinds(precision="bf16_pure", method="lora") == [{half}, {half}]
    assert kinds(precision="bf16", method="qlora") == [{torch.float32}, {half}]
    assert kinds(precision="bf16", method="dpo") == [{torch.float32}, {half}]


@pytest.mark.parametrize(
    ("method", "checkpointing"),
    [("full", True), ("lora", False), ("qlora", False), ("qat", True)],
)
def test_a_decoder_layer_is_one_graph(method, checkpointing):
    """Compiled whole, without a break, the layers train as they do uncompiled."""
    found = []
    for compiled in (False, True):
        torch._dynamo.reset()
        point = complete(NANO | {"method": method, "activation_checkpointing": checkpointing})
        model, layers = llm.build_model(point)
        for layer in layers if compiled else ():
            layer.compile(backend="aot_eager", fullgraph=True)
        loss = llm.loss(model, {"tokens": tokens(2, 16)})
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters() if p.requires_grad)])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", ["full", "qlora", "dpo", "qat"])
def test_training_on_a_gpu_waits_for_nothing(method):
    """No step of model, head or reference reads the device."""
    point = complete(NANO | {"seq_len": 64, "precision": "bf16_pure", "method": method, "loss_chunks": 4})
    work = workloads.build(point, torch.device("cuda"))
    batch = {name: value[None].cuda() for name, value in work.dataset[0].items()}
    llm.loss(work.model, batch).backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        llm.loss(work.model, work.prepare(batch)).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
