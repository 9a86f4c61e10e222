"""On GPUs: recorded passes, kernels, allocators and offloading train as eager steps do; several GPUs as one batch."""

import pytest
import torch

from nightsweep.jobs.point.environment import environment
from nightsweep.jobs.point.point import complete
from tests.jobs.strategies.strategy_run import NANO, run
from tests.jobs.strategies.test_strategies import STEPS, TWO, VIT, means, plain

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
two_gpus = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")

GPU = NANO | {"device": "cuda", "grad_accum": 2}
# mobilenet_v2 drops out at random. In fp32, batch norms of a few small images make sums that differ in their last bit
# differ in the first digit.
RESNET = {**GPU, "workload": "image", "model": "resnet50", "image_size": 32, "precision": "fp64"}
RESNET.pop("seq_len")
BF16 = GPU | {"precision": "bf16"}

LIKE_EAGER = {
    "eager": GPU,
    "recorded": GPU | {"cuda_graph": True},
    "recorded static": GPU | {"cuda_graph": True, "ddp_static_graph": True, "micro_batch": 4, "grad_accum": 1},
    "recorded local_sgd": GPU | {"cuda_graph": True, "strategy": "local_sgd"},
    "for-loop": GPU | {"optimizer_kernels": "for-loop"},
    "fused": GPU | {"optimizer_kernels": "fused"},
    "dp": GPU | {"strategy": "dp"},
    "fsdp2 offloaded": GPU | {"strategy": "fsdp2", "offload": "all"},
    "zero2 offloaded": GPU | {"strategy": "zero2", "offload": "optimizer"},
    "zero3 offloaded": GPU | {"strategy": "zero3", "offload": "all"},
    "compiled": GPU | {"compile": "default"},
    "compiled and recorded": GPU | {"compile": "default", "cuda_graph": True},
    "compiled fsdp2": GPU | {"compile": "default", "strategy": "fsdp2"},
    "fp16 recorded": GPU | {"precision": "fp16", "cuda_graph": True},
}
LIKE_MATH = {
    "math": BF16 | {"attention": "math"},
    "flash": BF16 | {"attention": "flash"},
    "cudnn": BF16 | {"attention": "cudnn"},
    "written out": BF16 | {"attention": "eager"},
    "bf16 recorded": BF16 | {"cuda_graph": True},
    "bf16 sent": BF16 | {"comm_hook": "bf16"},
}
LIKE_RESNET = {
    "resnet": RESNET,
    "recorded resnet": RESNET | {"cuda_graph": True},
    "resnet compiled into graphs": RESNET | {"compile": "reduce-overhead"},
}
ALIKE = [(name, next(iter(group))) for group in (LIKE_EAGER, LIKE_MATH, LIKE_RESNET) for name in list(group)[1:]]
ONE = LIKE_EAGER | LIKE_MATH | LIKE_RESNET


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return run(tmp_path_factory.mktemp("one"), 1, ONE, TORCH_NCCL_ASYNC_ERROR_HANDLING="0")


@pytest.mark.parametrize(("name", "like"), ALIKE)
def test_one_gpu(one, name, like):
    short = "16" in str(ONE[name].get("precision"))
    assert means(one[name]) == pytest.approx(means(one[like]), rel=1e-2 if short else 1e-3)


@pytest.mark.parametrize("allocator", ["expandable", "async"])
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_allocators(one, tmp_path, allocator, cuda_graph):
    settings = GPU | {"allocator": allocator, "cuda_graph": cuda_graph}
    found = run(tmp_path, 1, {"p": settings}, **environment(complete(settings)))
    assert means(found["p"]) == pytest.approx(means(one["eager"]), rel=1e-4)


@two_gpus
def test_two_gpus(tmp_path):
    """The points of the CPU, and two of which the first is the reference of a recorded one."""
    from nightsweep.jobs.strategies import fsdp  # which takes a second

    able = {name: settings for name, settings in TWO.items() if name != "fsdp2 qlora" or fsdp.shards_integers()}
    points = {name: settings | {"device": "cuda"} for name, settings in able.items()} | {
        "eager": GPU,
        "recorded": GPU | {"cuda_graph": True},
        "compiled zero3": GPU | {"strategy": "zero3", "compile": "default"},
        "compiled tp": GPU | {"strategy": "tp", "compile": "default"},
    }
    found = run(tmp_path, 2, points, STEPS, TORCH_NCCL_ASYNC_ERROR_HANDLING="0")
    assert means(found["recorded"]) == pytest.approx(means(found["eager"]), rel=1e-4)
    assert means(found["compiled tp"]) == pytest.approx(plain(GPU, 1), rel=1e-3)
    assert means(found["compiled zero3"]) == pytest.approx(plain(GPU, 2), rel=1e-3)
    for name in ("ddp", "fsdp2", "fsdp2 offloaded", "local_sgd 1", "zero1", "zero2", "zero3"):
        assert means(found[name]) == pytest.approx(plain(TWO[name], 2), rel=1e-3), name
    for name in ("tp", "pp", "vit pp"):
        assert means(found[name]) == pytest.approx(plain(TWO[name], 1), rel=1e-3), name


@two_gpus
def test_data_parallel_over_gpus_is_one_large_batch(tmp_path):
    points = {
        "llm": GPU | {"strategy": "dp", "ranks_per_node": 2},
        "vit": VIT | {"device": "cuda", "precision": "fp32", "strategy": "dp", "ranks_per_node": 2},
    }
    found = run(tmp_path, 1, points, STEPS)
    for name, settings in points.items():
        assert means(found[name]) == pytest.approx(plain(settings | {"micro_batch": 4}, 1), rel=1e-3), name
