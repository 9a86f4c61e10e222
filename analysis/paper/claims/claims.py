"""The twelve claims of "Profiling and optimization of multi-card GPU machine learning jobs", judged by measurement.

python -m analysis.paper.claims results/paper/tables
"""

from __future__ import annotations

from analysis.paper.claims import image, llm
from analysis.paper.claims.claim import Claim

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
        "A step of DPO has two texts a sample, and both go through the network twice. QAT's rounding is compiled into "
        "the layers here; torchtune's recipes compile nothing unless asked to. Before whole layers were compiled here, "
        "QAT was the slowest of the four: 585 to 664 ms a step on an H200.",
        by="method",
    ),
    Claim("C8", f"QLoRA takes less memory and more time than LoRA ({PAPER}).", llm.qlora, by="method"),
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
        "The paper has MNIST; of the points, the setting data tells what they have: builtin is scikit-learn's digits.",
    ),
    Claim(
        "C12",
        f"DDP with a distributed sampler is the fastest strategy for image jobs ({PAPER}, {SIBLING}).",
        image.strategy,
        by="strategy",
    ),
)
