"""What can be trained: one entry a workload, which all that lists workloads or models reads.

A workload is its entry here, its module in jobs/workloads, and its own settings in jobs/point/settings. Nothing here
needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """One workload.

    Attributes:
        module: in jobs/workloads, with `build_model`, `build` (a `Work`), `loss`, `blank` (a micro-batch of zeros) and,
            where a data set is made on disk first, `prepare_data`; imported when it is asked for.
        models: the networks that it trains.
        on_device: whether its model is made where it is trained; else on the CPU.
        share_of_peak: what its steps reach of a GPU's peak, for estimates (jobs/sweep/estimate.py).
    """

    module: str
    models: tuple[str, ...]
    on_device: bool = False
    share_of_peak: float = 0.1


WORKLOADS: dict[str, Workload] = {
    "image": Workload("image", ("mobilenet_v2", "resnet50", "vit_s")),
    "llm": Workload(
        "llm.workload",
        ("llama-nano", "llama-160m", "llama-1b", "llama-3b", "llama-8b"),
        on_device=True,
        share_of_peak=0.3,
    ),
}
MODELS = tuple(model for workload in WORKLOADS.values() for model in workload.models)
