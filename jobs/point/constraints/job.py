"""What cannot be whatever the strategy."""

from __future__ import annotations

from jobs.point.constraints.reason import Reason
from jobs.point.point import Point
from jobs.point.settings.job import IMAGE_MODELS, LLM_MODELS


def model_of_workload(p: Point) -> Reason | None:
    models = IMAGE_MODELS if p.workload == "image" else LLM_MODELS
    if p.model in models:
        return None
    return Reason(("model", "workload"), f"{p.model!r} is no {p.workload} model (there are {', '.join(models)})")


def numa_of_a_gpu(p: Point) -> Reason | None:
    if p.numa != "none" and p.device == "cpu":
        return Reason(("numa", "device"), f"numa {p.numa} on device cpu: there is no GPU to be near to")
    return None


def tf32_on_cpu(p: Point) -> Reason | None:
    if p.precision == "tf32" and p.device == "cpu":
        return Reason(("precision", "device"), "tf32 is arithmetic of GPUs; device is cpu")
    return None


CHECKS = (model_of_workload, numa_of_a_gpu, tf32_on_cpu)
