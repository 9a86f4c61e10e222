"""A graph with other columns of some of its calls or work; only steps that count are changed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from nightsweep.analysis.diagnosis.replay.graph import Graph, Mask


def compose(*made: Callable[[Graph], Graph]) -> Callable[[Graph], Graph]:
    """The changes one after the other."""
    return lambda graph: functools.reduce(lambda changed, change: change(changed), made, graph)


def change_calls(graph: Graph, where: Mask | bool, **columns: npt.ArrayLike) -> Graph:
    """The graph with other columns of these calls; the graph itself where there are none."""
    chosen = where & graph.counted_calls
    if not chosen.any():
        return graph
    return dataclasses.replace(graph, calls=_replaced(graph.calls, chosen, columns))


def change_work(graph: Graph, where: Mask, **columns: npt.ArrayLike) -> Graph:
    """The graph with other columns of this work; the graph itself where there is none."""
    chosen = where & graph.counted_work
    if not chosen.any():
        return graph
    return dataclasses.replace(graph, work=_replaced(graph.work, chosen, columns))


def _replaced(table: Any, chosen: Mask, columns: dict[str, npt.ArrayLike]) -> Any:
    new = {name: np.where(chosen, values, getattr(table, name)).astype(np.int64) for name, values in columns.items()}
    return dataclasses.replace(table, **new)


def only_on(before: Graph, after: Graph, rank: int) -> Graph:
    """`before`, with calls and work of this rank as in `after`."""
    return dataclasses.replace(
        before,
        calls=_merged(before.calls, after.calls, before.calls.rank == rank),
        work=_merged(before.work, after.work, before.work.rank == rank),
    )


def _merged(before: Any, after: Any, chosen: Mask) -> Any:
    names = [
        field.name
        for field in dataclasses.fields(before)
        if getattr(before, field.name) is not getattr(after, field.name)
    ]
    return dataclasses.replace(before, **{n: np.where(chosen, getattr(after, n), getattr(before, n)) for n in names})
