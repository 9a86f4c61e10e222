"""Which calls and which work of a graph are of a kind."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.replay.graph import Graph, Ints, Mask, is_batch, marked, where


@dataclass(frozen=True)
class _OfWork:
    """What each piece of work is (`Work.frame`), which no change touches: `batches`, and of columns and values which
    work has them, of those that were asked for."""

    batches: Mask
    text: dict[tuple[str, str], Mask] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph) -> _OfWork:
        known = graph.kept.get(cls)
        if not isinstance(known, cls):
            known = graph.kept[cls] = cls(is_batch(graph.work.frame))
        return known


@dataclass(frozen=True)
class LeadingUp:
    """Pairs of a `call` and the `launch` that it leads up to, which no change touches: each launch, and the calls
    before it since the launch before."""

    call: Ints
    launch: Ints

    @classmethod
    def of(cls, graph: Graph) -> LeadingUp:
        known = graph.kept.get(cls)
        if not isinstance(known, cls):
            known = graph.kept[cls] = cls._make(graph)
        return known

    @classmethod
    def _make(cls, graph: Graph) -> LeadingUp:
        launches, after = marked(len(graph.calls.start), graph.work.call), graph.calls.after
        launch = call = np.flatnonzero(launches)
        found = []
        while len(call):
            found.append((call, launch))
            before = after[call]
            goes_on = (before >= 0) & ~launches[before]
            call, launch = before[goes_on], launch[goes_on]
        return cls(*(np.concatenate(each) for each in zip(*found, strict=True))) if found else cls(call, launch)


def of_batches(graph: Graph, source: str | None = None) -> Mask:
    """Work that copies batches to a device, from this kind of memory."""
    chosen = _OfWork.of(graph).batches
    return chosen if source is None else chosen & text(graph, "source", source)


def text(graph: Graph, column: str, value: str) -> Mask:
    known = _OfWork.of(graph).text
    if (column, value) not in known:
        known[column, value] = where(graph.work.frame, pl.col(column) == value)
    return known[column, value]


def waits_for_batches(graph: Graph, copies: Mask) -> Mask:
    """Calls that make these copies, and those right after them that wait for them, as `tensor.to(device)` does."""
    out = marked(len(graph.calls.start), graph.work.call[copies])
    follows = (graph.calls.after >= 0) & graph.calls.synchronizes & (graph.calls.waits_for >= 0)
    return out | (follows & out[graph.calls.after])


def synchronizing(graph: Graph) -> Mask:
    """Calls that wait for the device in the middle of the step's work: by themselves, or for numbers that they copy."""
    numbers = text(graph, "direction", "DtoH") | (text(graph, "direction", "HtoD") & ~of_batches(graph))
    reads = marked(len(graph.calls.start), graph.work.call[numbers])
    waits = graph.calls.waits_for >= 0
    return waits & (graph.calls.synchronizes | reads) & ~waits_for_batches(graph, of_batches(graph))


def communication(graph: Graph) -> Mask:
    return text(graph, "category", "communication")
