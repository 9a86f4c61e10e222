"""What llm points are refused for, one line each, and that their neighbours pass."""

import pytest

from nightsweep.jobs.point.check import reasons
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.sweep import estimate

BASE = {"workload": "llm", "model": "llama-1b"}


FLOAT8 = {"float8": "rowwise", "precision": "bf16"}
EVERY = {"activation_checkpointing": True, "checkpoint_every": 16}
PARTS = {"loss_chunks": 8, "strategy": "fsdp2", "ranks_per_node": 2}


@pytest.mark.parametrize(
    ("wrong", "right", "words"),
    [
        ({"method": "dpo", "sequences": "packed"}, {"sequences": "packed"}, "preference pairs are made of windows"),
        (
            {"sequences": "packed", "attention": "flash", "precision": "bf16"},
            {"sequences": "padded", "attention": "flash", "precision": "bf16"},
            "takes no mask",
        ),
        (EVERY | {"checkpoint_every": 17}, EVERY, "17 is more than the layers"),
        (FLOAT8 | {"device": "cpu"}, FLOAT8, "arithmetic of GPUs"),
        (FLOAT8 | {"precision": "fp32"}, FLOAT8 | {"precision": "bf16_pure"}, "products come out in bf16"),
        (FLOAT8 | {"method": "qat"}, FLOAT8 | {"method": "lora"}, "rounds its weights itself"),
        ({"method": "qat", "precision": "fp64"}, {"method": "lora", "precision": "fp64"}, "torchao rounds fp32"),
        (PARTS | {"strategy": "tp"}, PARTS, "tp with loss_chunks 8: split layers use their own"),
        (PARTS | {"tensor_parallel": 2}, PARTS, "tensor_parallel 2 with loss_chunks 8: split layers"),
    ],
)
def test_what_cannot_be_has_one_reason(wrong, right, words):
    found = [reason.text for reason in reasons(complete(BASE | wrong))]
    assert words in found[0] and len(found) == 1
    assert reasons(complete(BASE | right)) == []


def test_estimates_know_the_methods():
    flops = {
        method: estimate.step_flops(complete(BASE | {"method": method}))
        for method in ("full", "lora", "qlora", "dpo", "dpo_lora", "qat")
    }
    full = flops["full"]
    assert {m: round(6 * f / full, 6) for m, f in flops.items()} == {
        "full": 6, "lora": 4, "qlora": 4, "dpo": 16, "dpo_lora": 12, "qat": 6
    }  # fmt: skip
    again = complete(BASE | {"activation_checkpointing": True, "checkpoint_every": 2})
    assert estimate.step_flops(again) == pytest.approx(full * 7 / 6)
    eight = {"precision": "bf16_pure", "micro_batch": 64}
    assert estimate.step_s(complete(BASE | eight | {"float8": "rowwise"})) < estimate.step_s(complete(BASE | eight))
