"""Events that can be true, of those that a reader found: a damaged or made-up trace holds others, too."""

from __future__ import annotations

import dataclasses

import polars as pl

from nightsweep.analysis.tables.events import Trace

LATEST_NS = 2**62
"""The year 2116; differences of times before it are numbers of 64 bits."""
LONGEST_NS = 2**53
"""104 days."""
UNNAMED = "unknown"
_NAMED = ("kernels", "runtime", "operators")


def keep_sound(trace: Trace) -> Trace:
    """The trace with only those events that have a start and a duration, all of them named.

    What that changes becomes a problem, one line a kind of event. Tables are taken out of the trace, so that large ones
    are not held twice.
    """
    events, problems = {}, []
    for kind in list(trace.events):
        frame = trace.events.pop(kind)
        start, end = pl.col("start_ns"), pl.col("end_ns")
        possible = start.is_between(-LATEST_NS, LATEST_NS) & (end <= LATEST_NS)
        sound = frame.select((possible & (end - start).is_between(0, LONGEST_NS)).fill_null(False)).to_series()
        if lost := frame.height - int(sound.sum()):
            fault = "without a start or with no, a negative or an absurd duration"
            problems.append(f"{kind}: events {fault}, left out: {lost}")
            frame = frame.filter(sound)
        if kind in _NAMED and (unnamed := frame["name"].null_count()):
            problems.append(f"{kind}: events without a name, called {UNNAMED}: {unnamed}")
            frame = frame.with_columns(pl.col("name").fill_null(UNNAMED))
        events[kind] = frame
    return dataclasses.replace(trace, events=events, problems=(*trace.problems, *problems))
