"""NCCL calls and the kernels that carry them out: alone, in groups, by thread and time, and by correlation."""

import pytest

from nightsweep.analysis.metrics.ranks import collectives
from tests.fakes.ranks import COMMUNICATOR, Timeline


def group(*calls):
    timeline = Timeline()
    for at, (kind, size) in enumerate(calls):
        timeline.call(kind, 20 * at, size)
    return timeline


def call_rows(timeline):
    frame = collectives.rank_collectives(timeline.events())
    return frame.select("collective", "calls", "bytes", "communicator").rows()


def test_a_group_in_one_kernel():
    timeline = group(("all_gather", 100), ("all_gather", 200))
    timeline.launch(90, "all_gather", 1000, 1100)
    timeline.collective("all_gather", 1200, 1300, size=7)
    assert call_rows(timeline) == [("all_gather", 2, 300, COMMUNICATOR), ("all_gather", 1, 7, COMMUNICATOR)]


def test_a_group_in_a_kernel_of_each_kind():
    timeline = group(("all_gather", 100), ("reduce_scatter", 200), ("all_gather", 50))
    timeline.launch(90, "reduce_scatter", 1000, 1100)
    timeline.launch(95, "all_gather", 1000, 1200)
    assert sorted(call_rows(timeline)) == [
        ("all_gather", 2, 150, COMMUNICATOR),
        ("reduce_scatter", 1, 200, COMMUNICATOR),
    ]


def test_sends_and_receives_of_a_group_are_one_exchange():
    timeline = group(("ncclSend", 100), ("ncclRecv", 40), ("ncclSend", 100), ("ncclRecv", 40))
    timeline.launch(90, "send_recv", 1000, 1100)
    assert call_rows(timeline) == [("send_recv", 4, 200, COMMUNICATOR)]


ALL_GATHERS = [("all_gather", 100), ("all_gather", 200)]


@pytest.mark.parametrize(
    ("calls", "kernels"),
    [
        (ALL_GATHERS, ["all_gather", "all_gather"]),
        ([*ALL_GATHERS, ("reduce_scatter", 200)], ["all_gather", "reduce_scatter", "reduce_scatter"]),
        ([*ALL_GATHERS, ("reduce_scatter", 200)], ["reduce_scatter"]),
    ],
)
def test_what_did_which_part_of_a_group_is_not_guessed(calls, kernels):
    timeline = group(*calls)
    for at, kind in enumerate(kernels):
        timeline.launch(90 + 5 * at, kind, 1000 + at, 1100)
    found = call_rows(timeline)
    assert [(kind, communicator) for kind, *_, communicator in found] == [(kind, COMMUNICATOR) for kind in kernels]
    alone = [kernels.count(kind) == 1 and len(set(kernels)) == len({k for k, _ in calls}) for kind in kernels]
    assert [count is not None for _, count, _, _ in found] == alone == [size is not None for _, _, size, _ in found]


def test_a_group_with_a_size_that_is_not_known_has_none():
    timeline = group(("all_gather", 100), ("all_gather", None))
    timeline.launch(90, "all_gather", 1000, 1100)
    assert call_rows(timeline) == [("all_gather", 2, None, COMMUNICATOR)]


def test_other_threads_and_graphs_do_not_launch_a_group():
    timeline = group(("all_gather", 100))
    timeline.launch(50, "all_gather", 500, 600, thread=2)
    timeline.launch(60, "all_gather", 700, 800, graph=1)
    timeline.launch(70, "all_gather", 900, 1000)
    assert [size for _, _, size, _ in call_rows(timeline)] == [None, None, 100]


def test_calls_that_know_their_kernel_need_no_thread():
    timeline = Timeline()
    timeline.call("all_reduce", 5000, 64, correlation=1, thread=None)
    timeline.launch(90, "ncclDevKernel_Generic(x)", 1000, 1100)
    timeline.launch(95, "all_reduce", 1200, 1300)
    assert call_rows(timeline) == [("all_reduce", 1, 64, COMMUNICATOR), ("all_reduce", None, None, None)]


def test_an_all_to_all_made_of_sends_is_called_what_it_was_called():
    timeline = Timeline()
    timeline.call("all_to_allv", 5000, 64, correlation=1)
    timeline.launch(90, "send_recv", 1000, 1100)
    timeline.launch(95, "send_recv", 1200, 1300)
    assert call_rows(timeline) == [("all_to_all", 1, 64, COMMUNICATOR), ("send_recv", None, None, None)]
