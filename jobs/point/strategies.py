"""The strategies by which ranks share the training: one entry each, which all that lists strategies reads.

A strategy is its entry here and its trainer in jobs/strategies; settings of its own stand in
jobs/point/settings/parallel.py. Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Strategy:
    """One strategy.

    Attributes:
        text: what it is, for docs/settings.md.
        holds, exchanges, samples: what a rank holds, what ranks send each other, and whose samples a rank trains on,
            for docs/strategies.md.
        trainer: MODULE:CLASS in jobs/strategies, imported when it is asked for.
        flat: whether it holds a rank's weights, or its part of them, in flat pieces.
        lasting: whether weights stay where they are, as recorded kernels want them.
        scales: whether each further rank adds its own samples and shares nothing else of a step's work.
    """

    text: str
    holds: str
    exchanges: str
    samples: str
    trainer: str
    flat: bool = False
    lasting: bool = False
    scales: bool = True


_SHARE = "a share"
_MODEL = "the model"


def _ddp(text: str, samples: str) -> Strategy:
    sent = "gradients, averaged as they become ready, once a step"
    return Strategy(text, _MODEL, sent, samples, "ddp:DdpTrainer", lasting=True)


def _zero(text: str, held: str) -> Strategy:
    return Strategy(text, f"shards of {held}", "as DeepSpeed does", _SHARE, "zero:ZeroTrainer", flat=True)


STRATEGIES: dict[str, Strategy] = {
    "ddp": _ddp("DDP, each rank walks the whole data set", "each the whole set"),
    "ddp_ds": _ddp("DDP with DistributedSampler", _SHARE),
    "fsdp2": Strategy(
        "PyTorch's FSDP2",
        holds="a shard of each layer",
        exchanges="weights gathered layer by layer, gradients scattered",
        samples=_SHARE,
        trainer="fsdp:Fsdp2Trainer",
        flat=True,
    ),
    "zero1": _zero("DeepSpeed ZeRO, stage 1", "optimizer state"),
    "zero2": _zero("stage 2", "optimizer state and gradients"),
    "zero3": _zero("stage 3", "optimizer state, gradients and weights"),
    "dp": Strategy(
        "one process drives all GPUs of the node with DataParallel",
        holds="all GPUs of the node, one process",
        exchanges="the model to every GPU in each pass, gradients back to the first",
        samples="all; `micro_batch` is of one GPU",
        trainer="data_parallel:DpTrainer",
        scales=False,
    ),
    "local_sgd": Strategy(
        "ranks train apart and average their weights now and then",
        holds=_MODEL,
        exchanges="weights, averaged after every `local_steps` steps; the optimizer's state stays with its rank",
        samples=_SHARE,
        trainer="local_sgd:LocalSgdTrainer",
        lasting=True,
    ),
    "tp": Strategy(
        "tensor parallel, each layer is split over the ranks",
        holds="a part of each layer",
        exchanges="sums of activations, twice a layer forward and backward",
        samples="the same in a group",
        trainer="tensor:TpTrainer",
        scales=False,
    ),
    "pp": Strategy(
        "pipeline parallel, the layers are split",
        holds="some of the layers",
        exchanges="activations and their gradients between neighbours",
        samples="the same in a group",
        trainer="pipeline:PpTrainer",
        scales=False,
    ),
}

DDP = ("ddp", "ddp_ds")
ZERO = ("zero1", "zero2", "zero3")
FLAT = tuple(name for name, strategy in STRATEGIES.items() if strategy.flat)
LASTING = tuple(name for name, strategy in STRATEGIES.items() if strategy.lasting)
SCALING = tuple(name for name, strategy in STRATEGIES.items() if strategy.scales)
