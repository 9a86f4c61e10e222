"""Which calls and which work of a graph are of a kind."""

from __future__ import annotations

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.replay.graph import Graph, Ints, Mask, is_batch, marked, where


def leading_up(graph: Graph) -> tuple[Ints, Ints]:
    """Calls, and of each the launch that it leads up to, which no change touches: each launch, and the calls before it
    since the launch before."""
    return graph.known("leading_up", lambda: _leading_up(graph))


def _leading_up(graph: Graph) -> tuple[Ints, Ints]:
    launches, after = marked(len(graph.calls.start), graph.work.call), graph.calls.after
    launch = call = np.flatnonzero(launches)
    found = [(call, launch)]
    while len(call):
        before = after[call]
        goes_on = (before >= 0) & ~launches[before]
        call, launch = before[goes_on], launch[goes_on]
        found.append((call, launch))
    calls, launched = (np.concatenate(each) for each in zip(*found, strict=True))
    return calls, launched


def of_batches(graph: Graph, source: str | None = None) -> Mask:
    """Work that copies batches to a device, from this kind of memory."""
    chosen = graph.known("batches", lambda: is_batch(graph.work.frame))
    return chosen if source is None else chosen & text(graph, "source", source)


def text(graph: Graph, column: str, value: str) -> Mask:
    return graph.known((column, value), lambda: where(graph.work.frame, pl.col(column) == value))


def waits_for_batches(graph: Graph, copies: Mask) -> Mask:
    """Calls that make these copies, and those right after them that wait for them, as `tensor.to(device)` does."""
    out = marked(len(graph.calls.start), graph.work.call[copies])
    follows = (graph.calls.after >= 0) & graph.calls.synchronizes & (graph.calls.waits_for >= 0)
    return out | (follows & out[graph.calls.after])


def synchronizing(graph: Graph) -> Mask:
    """Calls that wait for the device in the middle of the step's work: by themselves, or for numbers that they copy."""
    reads = marked(len(graph.calls.start), graph.work.call[text(graph, "direction", "DtoH")])
    waits = graph.calls.waits_for >= 0
    return waits & (graph.calls.synchronizes | reads) & ~waits_for_batches(graph, of_batches(graph))


def communication(graph: Graph) -> Mask:
    return text(graph, "category", "communication")
