"""Every strategy trains as a plain loop of one process does on all samples at once, which is written out here.

In fp64 the losses agree to the rounding of the fp32 that transformers' norms insist on. The losses of later steps are
of weights that the optimizer has moved, so that a wrong gradient or average shows."""

import contextlib
import functools

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from nightsweep.jobs.host.unsupported import Unsupported
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.strategies.zero import zero_optimization
from nightsweep.jobs.workloads import compute
from nightsweep.jobs.workloads import make as workloads
from tests.jobs.strategies.strategy_run import CPU, NANO, build, fetched, first_layers, run

pytestmark = pytest.mark.slow

STEPS = 4
EXACT = {"precision": "fp64", "grad_accum": 2}
LLM = NANO | EXACT
VIT = {"workload": "image", "model": "vit_s", "image_size": 32, **CPU, **EXACT}
PLAIN = NANO | {"grad_accum": 2}
RESNET = {"workload": "image", "model": "resnet50", "image_size": 32, "layout": "nhwc", **CPU, "timed_steps": 2}
RESNET |= {"precision": "bf16_pure"}
QLORA = NANO | {"method": "qlora", "learning_rate": 0.1, "loss_chunks": 2}

TWO = {
    "ddp": LLM | {"ddp_bucket_view": True, "ddp_bucket_mb": 1},
    "ddp static": LLM | {"ddp_static_graph": True, "grad_accum": 1},
    "fsdp2": LLM | {"strategy": "fsdp2", "prefetch_layers": 2, "reshard_after_forward": False},
    "fsdp2 offloaded": LLM | {"strategy": "fsdp2", "offload": "all"},
    "local_sgd 1": LLM | {"strategy": "local_sgd", "local_steps": 1},
    "local_sgd 2": LLM | {"strategy": "local_sgd", "local_steps": 2},
    "tp": LLM | {"strategy": "tp"},
    "pp": LLM | {"strategy": "pp"},
    "vit pp": VIT | {"strategy": "pp", "pipeline_schedule": "gpipe"},
    "fp16 sent": PLAIN | {"comm_hook": "fp16"},
    "powersgd": PLAIN | {"comm_hook": "powersgd"},
    "topk": PLAIN | {"comm_hook": "topk"},
    "zero1": PLAIN | {"strategy": "zero1", "zero_communication": "overlapped"},
    "zero2": PLAIN | {"strategy": "zero2", "offload": "optimizer"},
    # Before others of ZeRO-3, whose linear layer stays in this process.
    "zero3 compiled": PLAIN | {"strategy": "zero3", "compile": "default", "prefetch_layers": 2},
    "zero3": PLAIN | {"strategy": "zero3", "offload": "all", "zero_communication": "serial"},
    # Layers large enough to be gathered; those of the nano model stay on each rank.
    "zero3 singly": VIT | {"precision": "fp32", "strategy": "zero3", "zero_messages": "single", "prefetch_layers": 2},
    "zero3 gathers singly": VIT
    | {"precision": "fp32", "strategy": "zero3", "zero_messages": "single_gathers", "prefetch_layers": 2},
    "zero3 bf16_pure": PLAIN | {"strategy": "zero3", "precision": "bf16_pure"},
    "ddp resnet": RESNET,
    "zero2 resnet": RESNET | {"strategy": "zero2"},
    "fsdp2 resnet": RESNET | {"strategy": "fsdp2", "precision": "bf16"},
    "fsdp2 bf16": PLAIN | {"strategy": "fsdp2", "precision": "bf16", "reduce_dtype": "bf16"},
    "ddp_ds qlora": QLORA | {"strategy": "ddp_ds"},
    "fsdp2 qlora": QLORA | {"strategy": "fsdp2"},
    "tp bf16_pure": PLAIN | {"strategy": "tp", "precision": "bf16_pure", "optimizer_kernels": "for-loop"},
}
FOUR = {
    "hsdp": LLM | {"strategy": "fsdp2", "replicas": 2},
    "fsdp2 x tp": LLM | {"strategy": "fsdp2", "tensor_parallel": 2},
    "tp x 2": LLM | {"strategy": "tp", "replicas": 2},
    "pp x 2": LLM | {"strategy": "pp", "replicas": 2},
}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return run(tmp_path_factory.mktemp("two"), 2, TWO, STEPS)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return run(tmp_path_factory.mktemp("four"), 4, FOUR, STEPS)


def model_and_shards(settings, shards):
    """A point's model, and the steps' samples of each shard of the data: accumulation is one large batch here."""
    point = complete(settings)
    work = build(point)
    found = []
    for shard in range(shards):
        sampler = DistributedSampler(work.dataset, shards, shard, seed=point.seed, drop_last=True)
        loader = DataLoader(work.dataset, point.micro_batch * point.grad_accum, sampler=sampler, drop_last=True)
        found.append(fetched(point, work, torch.device("cpu"), loader))
    return work, found


def sgd(work, settings):
    work.model.to(torch.float64 if settings.get("precision") == "fp64" else torch.float32)
    return torch.optim.SGD(work.model.parameters(), lr=settings["learning_rate"], momentum=0.9)


def plain(settings, shards):
    """Losses of steps over the samples of all shards at once, without any strategy."""
    names = ("workload", "model", "precision", "grad_accum", "seq_len", "image_size", "micro_batch")
    return _plain(tuple((name, settings[name]) for name in names if name in settings), shards)


@functools.cache
def _plain(pairs, shards):
    settings = CPU | dict(pairs)
    work, batches = model_and_shards(settings, shards)
    optimizer, found = sgd(work, settings), []
    for _ in range(STEPS):
        parts = [next(of_shard) for of_shard in batches]
        loss = work.loss(work.model, {name: torch.cat([part[name] for part in parts]) for name in parts[0]})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def means(of_ranks):
    """The mean loss of each step, over micro-batches and ranks."""
    assert not any(isinstance(of_rank, dict) for of_rank in of_ranks), of_ranks[0]["error"]
    return torch.tensor(of_ranks, dtype=torch.float64).mean((0, 2)).tolist()


@pytest.mark.parametrize("name", ["ddp", "ddp static", "fsdp2", "fsdp2 offloaded", "local_sgd 1"])
def test_ranks_with_samples_of_their_own_are_one_large_batch(two, name):
    assert means(two[name]) == pytest.approx(plain(TWO[name], 2), rel=1e-6)


@pytest.mark.parametrize("name", ["tp", "pp", "vit pp"])
def test_ranks_that_split_a_model_are_one_rank(two, name):
    assert torch.allclose(*map(torch.tensor, two[name]))  # both tell the same losses of the same samples
    assert means(two[name]) == pytest.approx(plain(TWO[name], 1), rel=1e-6)


@pytest.mark.parametrize("name", list(FOUR))
def test_meshes_of_two_dimensions(four, name):
    shards = 4 if name == "hsdp" else 2
    assert means(four[name]) == pytest.approx(plain(FOUR[name], shards), rel=1e-6)


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3", "zero3 compiled", "zero3 singly", "zero3 gathers singly"])
def test_zero_offloaded_compiled_and_with_either_communication(two, name):
    assert means(two[name]) == pytest.approx(plain(TWO[name], 2), rel=1e-4)


def test_what_zero3_compiles_has_torchs_own_linear_layer():
    # With DeepSpeed's, torch 2.11 compiles each layer of a network for itself: of Llama-8B 65 graphs in place of 3.
    settings = NANO | {"strategy": "zero3", "ranks_per_node": 2}
    compiled, eager = (
        zero_optimization(complete(settings | {"compile": compiler}), 1, torch.device("cpu"))
        for compiler in ("default", "none")
    )
    assert not compiled["memory_efficient_linear"]
    assert "memory_efficient_linear" not in eager


def test_what_zero3_sends_singly_is_not_put_into_buckets():
    # Of Llama-8B's weights the smallest that is no norm has 4 million elements.
    settings = NANO | {"strategy": "zero3", "ranks_per_node": 2}
    single, gathers, small = (
        zero_optimization(complete(settings | own), 1, torch.device("cpu"))
        for own in ({"zero_messages": "single"}, {"zero_messages": "single_gathers"}, {"zero_bucket_millions": 50})
    )
    assert single["reduce_bucket_size"] < 4_000_000
    assert "reduce_bucket_size" not in gathers
    assert small["reduce_bucket_size"] == 50_000_000


@pytest.mark.parametrize(
    ("name", "shards"), [("fp16 sent", 2), ("fsdp2 bf16", 2), ("tp bf16_pure", 1), ("zero3 bf16_pure", 2)]
)
def test_short_formats_are_near(two, name, shards):
    found, expected = means(two[name]), plain(TWO[name] | {"precision": "fp32"}, shards)
    assert found == pytest.approx(expected, rel=2e-3)
    assert found != pytest.approx(expected, rel=1e-9)  # else the format had no effect


@pytest.mark.parametrize("name", ["zero2 resnet", "fsdp2 resnet"])
def test_batch_norms_are_of_one_format_and_weights_of_the_layout_that_flat_pieces_have(two, name):
    """PyTorch refuses statistics in another format than that of weights; FSDP2 and ZeRO refuse weights in NHWC. After a
    step of so few images, losses of any two ways to sum are far from each other: the first alone is compared."""
    for of_rank, ddp in zip(two[name], two["ddp resnet"], strict=True):
        assert of_rank[0] == pytest.approx(ddp[0], rel=1e-3)


def test_adapters_are_tuned_alike(two):
    found = means(two["ddp_ds qlora"])
    assert means(two["fsdp2 qlora"]) == pytest.approx(found, rel=1e-4)
    assert len(set(found)) == STEPS


@pytest.mark.parametrize("name", ["powersgd", "topk"])
def test_coarse_averages_begin_after_the_first_steps(two, name):
    """Two plain averages, which three losses have seen; then a coarse one, after which the loss is still lower."""
    found, expected = means(two[name]), plain(TWO[name], 2)
    assert found[:3] == pytest.approx(expected[:3], rel=1e-5)
    assert found[3] != pytest.approx(expected[3], rel=1e-4) and found[3] < found[0]


def test_local_sgd_averages_every_second_step(two):
    """Written out: two models apart, whose weights are set to their mean after two steps."""
    settings = TWO["local_sgd 2"]
    works = [model_and_shards(settings, 2)[0] for _ in range(2)]
    batches = model_and_shards(settings, 2)[1]
    optimizers = [sgd(work, settings) for work in works]
    for step in range(STEPS):
        for rank, (work, optimizer) in enumerate(zip(works, optimizers, strict=True)):
            loss = work.loss(work.model, next(batches[rank]))
            assert sum(two["local_sgd 2"][rank][step]) / 2 == pytest.approx(loss.item(), rel=1e-6)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step == 1:
            with torch.no_grad():
                for one, other in zip(*(work.model.parameters() for work in works), strict=True):
                    one.copy_((one + other) / 2)
                    other.copy_(one)


@pytest.mark.parametrize("settings", [NANO, VIT | {"precision": "fp32"}], ids=["llm", "image"])
def test_compiled_networks_compute_the_same(settings):
    found = []
    for mode in ("none", "default"):
        point = complete(settings | {"compile": mode, "grad_accum": 1})
        work = first_layers(workloads.build(point), 1)  # which is soon compiled
        compute.compile_model(point, work)
        batch = next(fetched(point, work, torch.device("cpu"), DataLoader(work.dataset, 2)))
        loss = work.loss(work.model, batch)
        loss.backward()
        gradients = torch.cat([p.grad.flatten() for p in work.model.parameters()])
        found.append((loss.item(), gradients))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-5)
    assert torch.allclose(found[1][1], found[0][1], rtol=1e-3, atol=1e-5)
    forwards = [module.forward for module in (work.layers if settings is NANO else (work.model,))]
    assert all(hasattr(forward, "_torchdynamo_orig_callable") for forward in forwards)


@pytest.mark.parametrize(("release", "refused"), [("2.11.0+cu130", True), ("2.13.0", False)])
def test_an_older_pytorch_is_told_to_shard_no_integers(monkeypatch, release, refused):
    from nightsweep.jobs.strategies import fsdp  # which takes a second

    monkeypatch.setattr(torch, "__version__", release)
    quantised = torch.nn.Module()
    quantised.register_parameter("w", torch.nn.Parameter(torch.zeros(2, dtype=torch.uint8), requires_grad=False))
    fsdp.require_weights(torch.nn.Linear(2, 2))
    with pytest.raises(Unsupported, match="quantised") if refused else contextlib.nullcontext():
        fsdp.require_weights(quantised)
