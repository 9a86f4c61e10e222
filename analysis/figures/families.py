"""The figures of a sweep by name; those of the paper are in analysis/paper/figures."""

from __future__ import annotations

from analysis.figures import (
    breakdown,
    causes,
    energy,
    failures,
    held_time,
    iteration_time,
    loss,
    memory,
    remedies,
    roofline,
    scaling,
    timeline,
)
from analysis.figures.family import Family

FAMILIES: dict[str, Family] = {
    "iteration_time": iteration_time.FAMILY,
    "scaling": scaling.FAMILY,
    "breakdown": breakdown.FAMILY,
    "causes": causes.FAMILY,
    "memory": memory.FAMILY,
    "timeline": timeline.FAMILY,
    "loss": loss.FAMILY,
    "failures": failures.FAMILY,
    "held_time": held_time.FAMILY,
    "roofline": roofline.FAMILY,
    "energy": energy.FAMILY,
    "remedies": remedies.FAMILY,
}
