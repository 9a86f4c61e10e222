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
    return _replaced(graph, "calls", where & graph.counted_calls, columns)


def change_work(graph: Graph, where: Mask, **columns: npt.ArrayLike) -> Graph:
    """The graph with other columns of this work; the graph itself where there is none."""
    return _replaced(graph, "work", where & graph.counted_work, columns)


def _replaced(graph: Graph, name: str, chosen: Mask, columns: dict[str, npt.ArrayLike]) -> Graph:
    if not chosen.any():
        return graph
    table: Any = getattr(graph, name)
    new = {own: np.where(chosen, values, getattr(table, own)).astype(np.int64) for own, values in columns.items()}
    return dataclasses.replace(graph, **{name: dataclasses.replace(table, **new)})  # type: ignore[arg-type]


def on_rank(change: Callable[[Graph], Graph], rank: int) -> Callable[[Graph], Graph]:
    """The change, made on this rank alone."""

    def made(before: Graph) -> Graph:
        after = change(before)
        calls = _merged(before.calls, after.calls, before.calls.rank == rank)
        return dataclasses.replace(before, calls=calls, work=_merged(before.work, after.work, before.work.rank == rank))

    return made


def _merged(before: Any, after: Any, chosen: Mask) -> Any:
    pairs = {own.name: (getattr(after, own.name), getattr(before, own.name)) for own in dataclasses.fields(before)}
    changed = {name: np.where(chosen, *pair) for name, pair in pairs.items() if pair[0] is not pair[1]}
    return dataclasses.replace(before, **changed)
