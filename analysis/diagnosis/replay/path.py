"""The longest path of a replay: what held up what, from the last work back to the first."""

from __future__ import annotations

import numpy as np

from analysis.diagnosis.replay.graph import Graph, Ints
from analysis.diagnosis.replay.times import Times


def unexplained_share(graph: Graph, times: Times) -> float:
    """The part of the longest path that lies before work which began later than all that it is known to wait for lets
    expect; 0 where there is no work."""
    if not len(graph.work.start):
        return 0.0
    last = int(np.argmax(times.work_end))
    path = work_on_path(graph, times, last)
    late = graph.work.unexplained[path].sum()
    return float(late / max(1, times.work_end[last] - times.work_start[path[-1]]))


def work_on_path(graph: Graph, times: Times, last: int) -> list[int]:
    """The work that this work, at the end of the path, had to wait for, each because of the next."""
    calls, work = graph.calls, graph.work
    path = [last]
    while True:
        n = path[-1]
        found = [(int(times.work_end[other] + work.wait_lag[n]), other) for other in work.waits.get(n, ())]
        if work.previous[n] >= 0:
            found.append((int(times.work_end[work.previous[n]] + work.stream_lag[n]), int(work.previous[n])))
        moment, other = max(found, default=(-1, -1))
        call = int(work.call[n])
        if call >= 0 and (other < 0 or times.call_start[call] + work.launch_lag[n] >= moment):
            other = _waited_for(calls.after, calls.waits_for, calls.least, times, call)
        if other < 0:
            return path
        path.append(other)


def _waited_for(after: Ints, waits_for: Ints, least: Ints, times: Times, call: int) -> int:
    """The work that the host last waited for before this call; -1 where it waited for none."""
    call = int(after[call])
    while call >= 0:
        if waits_for[call] >= 0 and times.call_end[call] > times.call_start[call] + least[call]:
            return int(waits_for[call])
        call = int(after[call])
    return -1
