"""Ranks that have more to do than the others, on timelines that are known."""

import pytest

from nightsweep.analysis.diagnosis.causes import communication
from tests.analysis.diagnosis.diagnosed import LINKED, MS, STEP, US, busy, causes, of


@pytest.mark.parametrize(
    ("kind", "share", "most"), [("all_reduce", 0.19, 0.3), ("send_recv", 0.15, 0.2)], ids=["batch each", "one batch"]
)
def test_a_rank_whose_device_has_more_to_do_is_a_straggler(tmp_path, kind, share, most):
    """Rank 1 computes for 7 ms, rank 0 for 4, before a message of 1 ms and 2 ms more of both. With a GPU like the
    others' that is 3 ms, with as much to do for both some 1.5: all there is where ranks share one batch's work."""

    def make(run, start):
        until = (4 + 3 * run.rank) * MS
        busy(run, start, until)
        run.reduce(start + until, start + 8 * MS, 400_000_000, kind)
        busy(run, start, STEP, 8 * MS)

    straggler = causes(of(tmp_path, make, ranks=2, record=LINKED))["straggler"]
    assert straggler.rank == 1 and straggler.share == pytest.approx(share, abs=0.015)
    assert straggler.low < 0.13 < most < straggler.high
    assert [fact.value for fact in straggler.evidence] == [pytest.approx(9), pytest.approx(6)]


def test_work_is_shared_evenly_between_two_collectives(tmp_path):
    """Rank 1 computes for 6 ms and rank 0 for 1; after a reduction of 1 ms both do for 3 ms. Shared evenly, the first
    part takes 3.5 ms, a quarter of the step less. With 4 ms in all, as rank 0 has, rank 1 would hold nobody up for
    long: its next step begins while rank 0 is in its last."""

    def make(run, start):
        until = (1 + 5 * run.rank) * MS
        busy(run, start, until)
        run.reduce(start + until, start + 7 * MS, 400_000_000)
        busy(run, start, STEP, 7 * MS)

    found = causes(of(tmp_path, make, ranks=2, record=LINKED))["straggler"]
    assert found.rank == 1 and found.share == pytest.approx((3 * 0.25 + 0.48) / 4, abs=0.01)


def test_what_a_rank_launches_more_is_evened_on_its_host_too(tmp_path):
    """Hosts launch a kernel of 20 us each 100: rank 1 80 in a step and rank 0 40, before a reduction and 1 ms of both.
    As many as the others: 4 ms less, of which kernels have nothing; shared evenly 2 ms."""

    def make(run, start):
        until = start + (4 + 4 * run.rank) * MS
        for at in range(start, until, 100 * US):
            run.kernel(at + 10 * US, at + 30 * US, at=at)
        run.reduce(until, start + 9 * MS, 400_000_000, at=until)
        busy(run, start, STEP, 9 * MS)

    (found,) = communication.straggler(of(tmp_path, make, ranks=2, record=LINKED))
    assert found.rank == 1 and found.share == pytest.approx((3 * 0.2 + 0.4) / 4, abs=0.01)
    assert 0.05 < found.low < 0.2 and found.high > 0.4
