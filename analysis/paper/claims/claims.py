"""The twelve claims of "Profiling and optimization of multi-card GPU machine learning jobs", judged by measurement.

python -m nightsweep.analysis.paper.claims results/paper/tables
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from nightsweep.analysis.paper.claims import image, llm
from nightsweep.analysis.paper.claims.claim import NOT_TESTED, Claim, Verdict
from nightsweep.analysis.sweep import dataset

PAPER, SIBLING, OURS = "arXiv 2505.22905", "arXiv 2503.15252", "our reading of the paper"

CLAIMS = (
    Claim("C1", f"Images in NHWC train faster than in NCHW ({PAPER}).", image.layout, by="layout"),
    Claim(
        "C2",
        f"Pinned memory makes image jobs faster ({PAPER}), by 16 to 30 %, and less so on more GPUs ({SIBLING}).",
        image.pinned,
        "16 to 30 % is a ratio of 1.16 to 1.30.",
        by="pin_memory",
    ),
    Claim(
        "C3",
        f"FP64 is slower than FP32, and that than FP16 ({PAPER}), by up to 210 %, at equal accuracy ({SIBLING}).",
        image.precision,
        f"210 % faster may be read as 2.1 or as 3.1 times as fast. Equal: within {image.EQUAL:.0%}.",
        by="precision",
    ),
    Claim(
        "C4",
        f"More GPUs pay off with large images and not with small ones ({PAPER}; sizes: {OURS}).",
        image.size_scaling,
        by="image_size",
    ),
    Claim(
        "C5",
        f"DALI is faster than DataLoader, more so with CPUs far from the GPU ({PAPER}; far: {OURS}).",
        image.loader,
        by="loader",
    ),
    Claim(
        "C6",
        f"LoRA takes less time and memory than DPO ({PAPER}).",
        llm.lora_and_dpo,
        "A step of DPO has two texts a sample and passes of a reference model: the difference is one of objective too.",
        by="method",
    ),
    Claim(
        "C7",
        f"QAT takes most time and memory of LoRA, QLoRA, DPO and QAT ({PAPER}).",
        llm.qat,
        "The verdict on time is of compiled layers, into which QAT's rounding is fused; torchtune's recipes compile "
        "nothing unless asked to. Before whole layers were compiled here, QAT was the slowest of the four: 585 to "
        "664 ms a step on an H200, in four points that `data/h200-2026-11-21` leaves out; there a sixth of QAT's "
        "memory is DDP's copies of gradients (`ddp_bucket_view: false`), which the others have as well, but of "
        "adapters alone. A step of DPO has two texts a sample, and both go through the network twice.",
        by="method",
    ),
    Claim(
        "C8",
        f"QLoRA takes less memory and more time than LoRA ({PAPER}).",
        llm.qlora,
        "In `data/h200-2026-11-21` a repeat was added when the interval of the times had both sides, which no "
        "correction takes into account.",
        by="method",
    ),
    Claim(
        "C9",
        f"Tuning spends its API time on launches and synchronisation, not on copies ({PAPER}).",
        llm.launches,
        "A call that waits for a busy GPU counts as synchronisation: a high share is not yet a loss.",
    ),
    Claim(
        "C10",
        f"Tuning of language models gains less from more GPUs than image jobs do ({SIBLING}).",
        llm.scaling,
        "Weak scaling of both.",
        by="workload",
    ),
    Claim(
        "C11",
        f"Accuracy of 98 to 99 % within {image.EPOCHS} epochs ({PAPER}).",
        image.goal,
        "The paper has MNIST. scikit-learn's digits are others, and easier.",
    ),
    Claim(
        "C12",
        f"DDP with a distributed sampler is the fastest strategy for image jobs ({PAPER}, {SIBLING}).",
        image.strategy,
        "Without a distributed sampler each rank walks all of the data: an epoch has as many times the steps as there "
        "are ranks, which is most of the factor that is seen.",
        by="strategy",
    ),
)


@functools.lru_cache(maxsize=1)  # each plot and the page of a sweep ask for all of them
def judge(tables: dataset.Tables) -> tuple[Verdict, ...]:
    """The verdict on each claim. Of all parts that are tested, each at 95 %, some would be decided by chance alone, so
    their p-values are corrected together (Holm, Scandinavian Journal of Statistics 6, 1979, 65-70)."""
    found = [claim.verdict(tables) for claim in CLAIMS]
    tested = [part for verdict in found for part in verdict.parts if part.decides and part.alone != NOT_TESTED]
    corrected = correct([part.chance for part in tested])
    by_part = dict(zip(map(id, tested), corrected, strict=True))
    return tuple(
        dataclasses.replace(
            verdict,
            parts=tuple(
                dataclasses.replace(part, corrected=float(by_part[id(part)])) if id(part) in by_part else part
                for part in verdict.parts
            ),
        )
        for verdict in found
    )


def correct(p_values: Sequence[float]) -> list[float]:
    """The p-values, each corrected for all of them as Holm does."""
    order = np.argsort(p_values)
    steps = np.arange(len(order), 0, -1) * np.asarray(p_values)[order]
    corrected = np.empty(len(order))
    corrected[order] = np.maximum.accumulate(steps).clip(max=1)
    return corrected.tolist()
