"""What is given to a rank of the other ranks' work, by step and by part of one."""

from types import SimpleNamespace

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.replay import rank_changes


def test_the_devices_of_a_rank_may_have_different_numbers_of_steps():
    """The steps of its last device count; those of a device that idled in some were too few to look them up."""
    windows = tuple(
        pl.DataFrame({"rank": rank, "device": device, "host_start_ns": begins})
        for rank, device, begins in ((0, 0, [100]), (0, 1, [100, 200, 300]), (1, 0, [100, 200, 300]))
    )
    launched = np.array([50, 110, 120, 310, 320, 110, 130, 310, 330])
    rank, group = np.array([0] * 5 + [1] * 4), np.array([-1, 0, -1, 1, -1, 0, -1, 1, -1])
    graph = SimpleNamespace(windows=windows, work=SimpleNamespace(rank=rank, launched=launched, group=group))
    step = rank_changes._steps_of(graph, rank, launched)
    assert step.tolist() == [0, 1, 1, 3, 3, 1, 1, 3, 3]
    assert rank_changes._parts_of(graph, step).tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1]
