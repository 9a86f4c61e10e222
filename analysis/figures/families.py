"""The figures of a sweep by name; those of the paper are in analysis/paper/figures."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from analysis.figures import (
    breakdown,
    causes,
    energy,
    failures,
    iteration_time,
    loss,
    memory,
    remedies,
    roofline,
    scaling,
    timeline,
)
from analysis.sweep import dataset

FAMILIES: dict[str, Callable[[dataset.Tables], Figure]] = {
    "iteration_time": iteration_time.draw,
    "scaling": scaling.draw,
    "breakdown": breakdown.draw,
    "causes": causes.draw,
    "memory": memory.draw,
    "timeline": timeline.draw,
    "loss": loss.draw,
    "failures": failures.draw,
    "roofline": roofline.draw,
    "energy": energy.draw,
    "remedies": remedies.draw,
}


def shown(family: str, tables: dataset.Tables) -> dataset.Tables:
    """What a family is drawn of: the sweep's own points, but for the one on remedies."""
    return tables if family == "remedies" else tables.own()
