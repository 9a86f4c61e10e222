"""A replay as the graph's definition has it: every call and every piece of work one by one, in measured order."""

from collections import defaultdict

import numpy as np

from nightsweep.analysis.diagnosis.replay.times import Times

WAITED, CALL, WORK = range(3)


def plain_replay(graph):
    calls, work = graph.calls, graph.work
    events = [(int(at), WAITED, n) for n, at in enumerate(calls.end)]
    events += [(int(at), CALL, n) for n, at in enumerate(calls.start)]
    events += [(int(at), WORK, n) for n, at in enumerate(work.start)]
    begun, ended = np.zeros(len(calls.start), np.int64), np.zeros(len(calls.start), np.int64)
    begins, ends = np.zeros(len(work.start), np.int64), np.zeros(len(work.start), np.int64)
    free, members = {}, defaultdict(list)
    for _, what, n in sorted(events):
        if what == CALL:
            before = calls.after[n]
            begun[n] = ended[before] + calls.gap[n] if before >= 0 else calls.start[n]
            ended[n] = begun[n] + calls.least[n]
        elif what == WAITED:
            if calls.waits_for[n] >= 0:
                ended[n] = max(ended[n], ends[calls.waits_for[n]] + calls.lag[n])
        else:
            lane = work.lane[n]
            ready = [ends[other] + work.wait_lag[n] for other in work.waits.get(n, ())]
            ready += [free[lane] + work.stream_lag[n]] if lane in free else []
            ready += [begun[work.call[n]] + work.launch_lag[n]] if work.call[n] >= 0 else []
            begins[n] = max(ready, default=work.start[n])
            together = members[work.group[n]] if work.group[n] >= 0 else []
            together.append(n)
            come = max(begins[each] for each in together)
            for each in together:
                ends[each] = free[work.lane[each]] = come + work.duration[each]
    return Times(begun, ended, begins, ends)
