"""What strategies and ways to compute refuse, a line each; and that checking needs no torch."""

import subprocess
import sys

import pytest

from nightsweep.jobs.point.check import reasons
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.point.settings.parallel import LAYERS
from nightsweep.jobs.workloads import image
from nightsweep.jobs.workloads.llm import workload as llm

LLM = {"workload": "llm", "model": "llama-1b"}
NANO = {"workload": "llm", "model": "llama-nano"}
VIT = {"workload": "image", "model": "vit_s"}
RESNET = {"workload": "image", "model": "resnet50"}
TWO = {"ranks_per_node": 2}
TP = LLM | TWO | {"strategy": "tp"}
PP = LLM | TWO | {"strategy": "pp", "grad_accum": 2}
FSDP = LLM | TWO | {"strategy": "fsdp2"}
CPU = {"device": "cpu"}

REFUSED = [
    (LLM | {"strategy": "zero2", "precision": "fp64"}, "zero2 with fp64: DeepSpeed trains in fp32, bf16 and fp16 only"),
    (
        LLM | {"strategy": "zero1", "precision": "bf16_pure", "offload": "optimizer"},
        "zero1 offloads bf16 weights to an optimizer of DeepSpeed's alone, which must be compiled",
    ),
    (
        FSDP | {"tensor_parallel": 2, "precision": "fp16"},
        "fp16 with tensor_parallel 2: gradients may overflow on some ranks of a model, unseen by the others",
    ),
    (VIT | TWO | {"strategy": "tp"}, "tp splits llama models, not vit_s"),
    (RESNET | TWO | {"strategy": "pp", "grad_accum": 2}, "pp splits llama models and vit_s, not resnet50"),
    (VIT | TWO | {"strategy": "fsdp2", "tensor_parallel": 2}, "tensor_parallel 2 splits llama models, not vit_s"),
    (TP | {"method": "lora"}, "tp splits whole models only; method is lora"),
    (PP | {"method": "dpo"}, "pp splits whole models only; method is dpo"),
    (TP | {"float8": "rowwise"}, "tp with float8 rowwise: split layers use their own matrix products"),
    (PP | {"loss_chunks": 4}, "pp with loss_chunks 4: split layers use their own matrix products"),
    (TP | {"ranks_per_node": 3}, "3 ranks cannot share the 8 key/value heads of llama-1b evenly"),
    (
        NANO | {"strategy": "fsdp2", "ranks_per_node": 4, "tensor_parallel": 4},
        "4 ranks cannot share the 2 key/value heads of llama-nano evenly",
    ),
    (LLM | {"strategy": "pp"}, "pp has one rank for a model: there is nothing to split"),
    (TP | {"replicas": 2}, "tp has one rank for a model: there is nothing to split"),
    (FSDP | {"replicas": 3}, "2 ranks cannot be divided into replicas 3"),
    (FSDP | {"replicas": 2, "tensor_parallel": 2}, "2 ranks cannot be divided into replicas 2 x tensor_parallel 2"),
    (
        NANO | {"strategy": "pp", "ranks_per_node": 8, "grad_accum": 8},
        "llama-nano has 4 layers for 8 stages",
    ),
    (PP | {"grad_accum": 1}, "1 micro-batches are fewer than the 2 stages that 1f1b must fill"),
    (PP | {"sequences": "packed"}, "pp hands hidden states on, and not which of packed sequences they are of"),
    (
        VIT | TWO | {"strategy": "pp", "grad_accum": 2, "epochs": 3},
        "epochs with pp: they are for ddp, ddp_ds, fsdp2 and dp",
    ),
    (LLM | {"strategy": "dp", "nodes": 2}, "dp is one process on one node; nodes is 2"),
    (LLM | TWO | CPU | {"strategy": "dp"}, "dp splits batches over GPUs, not over 2 CPUs"),
    (FSDP | {"offload": "optimizer"}, "fsdp2 offloads the optimizer with the weights only (offload all)"),
    (LLM | {"strategy": "zero1", "offload": "all"}, "zero1 keeps weights on the GPU; zero3 offloads them"),
    (
        FSDP | {"offload": "all", "precision": "fp16"},
        "fsdp2 offloads gradients; fp16's loss scaling looks at them on the GPU",
    ),
    (
        LLM | {"comm_hook": "bf16", "precision": "bf16_pure"},
        "comm_hook bf16 has no effect: gradients of bf16_pure are bf16",
    ),
    (
        LLM | {"ddp_static_graph": True, "grad_accum": 2},
        "DDP's static graph takes every micro-batch to communicate, and only a step's last one does",
    ),
    (LLM | CPU | {"comm_hook": "bf16"}, "DDP sends bf16 between GPUs only; device is cpu"),
    (
        LLM | TWO | {"comm_hook": "topk", "precision": "fp16"},
        "comm_hook topk would carry gradients that overflow in fp16 into every later step",
    ),
    (LLM | TWO | CPU | {"nccl_transport": "sockets"}, "nccl_transport sockets has no effect: device is cpu"),
    (FSDP | {"nccl_algo": "tree"}, "nccl_algo tree has no effect: strategy is fsdp2"),
    (PP | {"checkpoint_steps": 5}, "checkpoint_steps 5 has no effect: strategy is pp"),
    (LLM | {"checkpoint_steps": 100}, "checkpoint_steps 100 has no effect: the job has 28 steps"),
    (LLM | {"checkpoint_async": True}, "checkpoint_async true has no effect: checkpoint_steps is 0"),
    (RESNET | {"augment": "worker", "loader": "device"}, "loader device has no process that augments (augment device)"),
    (LLM | {"strategy": "local_sgd", "comm_hook": "fp16"}, "comm_hook fp16 has no effect: strategy is local_sgd"),
    (
        LLM | {"strategy": "dp", "compile": "default"},
        "dp runs copies of the model in threads, which torch.compile cannot",
    ),
    (
        LLM | {"strategy": "zero3", "compile": "default", "method": "lora"},
        "zero3 needs a gradient at each compiled layer's input; method lora freezes what is before them",
    ),
    (
        FSDP | {"compile": "max-autotune"},
        "compile max-autotune records CUDA graphs, and fsdp2 moves weights or launches between them",
    ),
    (RESNET | CPU | {"compile": "reduce-overhead"}, "compile reduce-overhead records CUDA graphs; device is cpu"),
    (
        RESNET | {"compile": "reduce-overhead", "allocator": "async"},
        "compile reduce-overhead needs PyTorch's own allocator",
    ),
    (LLM | CPU | {"cuda_graph": True}, "CUDA graphs are recorded on GPUs; device is cpu"),
    (FSDP | {"cuda_graph": True}, "cuda_graph needs ddp, ddp_ds, local_sgd, not fsdp2"),
    (
        RESNET | {"cuda_graph": True, "compile": "reduce-overhead"},
        "compile reduce-overhead records its own CUDA graphs",
    ),
    (LLM | {"cuda_graph": True, "comm_hook": "powersgd"}, "comm_hook powersgd runs on the host in every step"),
    (
        LLM | {"cuda_graph": True, "activation_checkpointing": True},
        "activation checkpointing asks for the random state, which a recorded pass cannot",
    ),
    (LLM | {"cuda_graph": True, "sequences": "padded"}, "masks of padded sequences are looked at on the host"),
    (
        FSDP | {"optimizer": "sgd", "optimizer_kernels": "fused"},
        "torch's fused SGD does not take the split tensors of fsdp2",
    ),
    (RESNET | {"attention": "math"}, "attention math has no effect: resnet50 has no attention"),
    (LLM | {"attention": "flash", "precision": "fp64"}, "flash attention is for bf16 and fp16, not fp64"),
    (VIT | {"attention": "cudnn", "precision": "tf32"}, "cudnn attention is for bf16 and fp16, not tf32"),
    (VIT | {"attention": "efficient", "precision": "fp64"}, "efficient attention is for fp32, bf16 and fp16, not fp64"),
    (VIT | CPU | {"attention": "efficient"}, "efficient attention is for GPUs; device is cpu"),
    (LLM | {"attention": "efficient"}, "efficient attention does not share key/value heads, as llama-1b does"),
    (
        LLM | {"attention": "flash", "precision": "bf16", "sequences": "packed"},
        "attention flash with sequences packed: the kernel takes no mask to keep documents apart",
    ),
    (
        LLM | {"compile": "reduce-overhead"},
        "compile reduce-overhead records CUDA graphs, which layers compiled one by one overwrite (try cuda_graph)",
    ),
    (
        RESNET | TWO | {"strategy": "dp", "cudnn_benchmark": True},
        "dp runs each pass in new threads, and cuDNN's trials are a thread's own: every step would repeat them",
    ),
    (LLM | {"tenants": 2, "nodes": 2}, "2 tenants share the GPUs of one node; nodes is 2"),
    (LLM | CPU | {"tenants": 2}, "2 tenants share a GPU; device is cpu"),
    (LLM | {"mps": True}, "mps true has no effect: tenants is 1"),
    (LLM | CPU | {"batch_search": True}, "batch_search fills a GPU's memory; device is cpu"),
    (LLM | {"cudnn_benchmark": True}, "cudnn_benchmark true has no effect: workload is llm"),
]

ALLOWED = [
    TP,
    TP | {"ranks_per_node": 4, "replicas": 2, "optimizer_kernels": "fused"},
    PP,
    PP | {"pipeline_schedule": "gpipe", "grad_accum": 1, "activation_checkpointing": True},
    VIT | TWO | {"strategy": "pp", "grad_accum": 2, "attention": "efficient"},
    FSDP | {"offload": "all", "replicas": 2, "compile": "default"},
    FSDP | {"ranks_per_node": 8, "replicas": 2, "tensor_parallel": 2},
    LLM | {"strategy": "zero3", "offload": "all", "zero_communication": "serial"},
    LLM | TWO | {"strategy": "dp", "trace_ranks": "0"},
    LLM | CPU | {"attention": "flash"},
    LLM | {"attention": "flash", "precision": "bf16", "sequences": "padded"},
    RESNET | TWO | {"tenants": 3, "mps": True, "batch_search": True},
    LLM | {"cuda_graph": True, "compile": "default", "allocator": "expandable"},
    RESNET | TWO | {"strategy": "local_sgd", "compile": "max-autotune", "cudnn_benchmark": True},
]


@pytest.mark.parametrize(("settings", "text"), REFUSED)
def test_refused_in_one_line(settings, text):
    assert text in [reason.text for reason in reasons(complete(settings))]


@pytest.mark.parametrize("settings", ALLOWED)
def test_allowed(settings):
    assert reasons(complete(settings)) == []


@pytest.mark.parametrize("settings", [VIT | {"image_size": 32}, LLM | {"model": "llama-nano"}])
def test_numbers_of_layers_are_those_of_the_models(settings):
    point = complete(settings)
    workload = image if point.workload == "image" else llm
    assert len(workload.build_model(point)[1]) == LAYERS[point.model]


def test_points_are_checked_without_torch():
    subprocess.run(
        [sys.executable, "-c", "import sys, nightsweep.jobs.point.check; sys.exit('torch' in sys.modules)"], check=True
    )
