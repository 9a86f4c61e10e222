"""What the lengths of timed steps tell of pauses that a trace may not have."""

import polars as pl
import pytest

from nightsweep.analysis.diagnosis import screen, verdict
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.evidence.unseen import Unseen
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.column import empty
from nightsweep.analysis.tables.points import STEPS
from tests.analysis.diagnosis import diagnosed


def of(*ranks, waits=0.0):
    """Timed steps of ranks, by the length of each, ms."""
    rows = [(rank, step, ms, waits) for rank, own in enumerate(ranks) for step, ms in enumerate(own)]
    return Unseen(pl.DataFrame(rows, ["rank", "step", "step_ms", "data_ms"], orient="row"), empty(STEPS))


def timed_steps(rank, step, wait):
    """Four steps of a rank, ms."""
    columns = {"rank": [rank] * 4, "step": range(4), "step_ms": [step] * 4, "data_ms": [wait] * 4}
    return pl.DataFrame({**columns, "alloc_retries": [0] * 4})


@pytest.mark.parametrize(
    ("longer", "added"), [(30.0, 6e6), (19.0, 0.0), (90.0, 12e6)], ids=["as long", "shorter", "as the longest"]
)
def test_what_pauses_add_to_the_mean_step(longer, added):
    """Of a length from 20 to 60 ms, in 4 of 20 steps."""
    assert of([100.0] * 16 + [100.0 + longer] * 4).stalls_ns(20e6, 60e6) == pytest.approx(added)


def test_a_step_is_paused_where_any_rank_is():
    """Each of four ranks in other steps, so that the others wait for it, and one step in 20 by none: such steps are
    rarer than on one rank."""
    steps = [130.0] * 19 + [100.0]
    assert of(*[steps] * 4).stalls_ns(20e6, 60e6) == pytest.approx(30e6 * 19 / 20)


def test_what_is_too_long_for_a_pause_has_another_reason():
    """One step, or one in five as with a checkpoint."""
    assert of([100.0] * 16 + [130.0] * 3 + [400.0]).stalls_ns(20e6, 60e6) == pytest.approx(4.5e6)
    assert of(([100.0] * 4 + [210.0]) * 5).stalls_ns(20e6, 60e6) == 0


def test_what_is_not_told():
    assert of([100.0] * 15).stalls_ns(20e6, 60e6) is None, "few steps"
    assert Unseen(empty(STEPS), empty(STEPS)).stalls_ns(20e6, 60e6) is None, "none"


def test_without_a_trace_a_step_is_as_long_as_the_mean_one():
    """Three workers give batches three at a time: two steps of 4 ms, then one of 172."""
    steps = of(([4.0, 4.0, 172.0]) * 4).timed.with_columns(start_ns=None, end_ns=None)
    text = screen.screen(verdict.judge(Evidence(steps=column.conform(steps.lazy(), STEPS).collect())))
    assert text.splitlines()[:2] == [
        "step 60.000 ms (mean of the timed steps)", "4.000 ms in the median: some steps take much longer"
    ]  # fmt: skip


def test_the_wait_that_is_told_is_that_of_the_rank_that_is_named(tmp_path):
    """Timed steps of 20 ms: rank 1 waits for its batches for 10 ms of them, and rank 0 for rank 1."""
    steps = pl.concat([timed_steps(rank, 20.0, wait) for rank, wait in enumerate((0.0, 10.0))])
    traced = pl.concat([timed_steps(rank, 10.0, 0.0) for rank in range(2)])
    e = diagnosed.of(tmp_path, diagnosed.busy, ranks=2, steps=steps, traced_steps=traced)
    cause = diagnosed.causes(e)["loader_wait"]
    assert (cause.rank, cause.share, cause.evidence[0].value) == (1, pytest.approx(0.5), 0.5)


def test_a_step_that_is_long_since_another_rank_waits_for_its_batches_is_no_work_of_the_host():
    """Rank 0 is the slowest by a hair, and waits for rank 1, whose loader gives four batches at a time."""
    lengths = [400.0, 40.0, 40.0, 40.0] * 5
    waits = [[0.1] * 20, [360.0 if ms > 40 else 0.1 for ms in lengths]]
    rows = [(rank, n, ms + 0.1 * (rank == 0), waits[rank][n]) for rank in (0, 1) for n, ms in enumerate(lengths)]
    timed = pl.DataFrame(rows, ["rank", "step", "step_ms", "data_ms"], orient="row")
    assert Unseen(timed, empty(STEPS)).long_steps == []
    assert Unseen(timed.with_columns(data_ms=pl.lit(0.1)), empty(STEPS)).long_steps == [0, 4, 8, 12, 16]


def launched_late(run, start):
    """Short kernels, each launched just before it runs, for 8 ms."""
    for at in range(start + 100_000, start + 8_000_000, 100_000):
        run.kernel(at, at + 20_000, at=at - 10_000)


@pytest.mark.parametrize(
    ("timed", "said"),
    [
        (9.9, ["9.900 ms in the median without a tracer", "shares of causes are of 9.900 ms: the traced step less"]),
        (4.0, ["4.000 ms in the median without a tracer", "shares of causes are of 9.2"]),
        (12.0, ["12.000 ms in the median without a tracer", "shares of causes are of 9.9"]),
    ],
    ids=["a little shorter", "far shorter", "longer"],
)
def test_the_step_that_shares_are_of_is_told(tmp_path, timed, said):
    """Which is neither the timed nor the traced one, where what a tracer may add is not all that they differ by."""
    steps = {"steps": timed_steps(0, timed, 0.0), "traced_steps": timed_steps(0, 10.0, 0.0)}
    e = diagnosed.of(tmp_path, launched_late, **steps)
    found = verdict.judge(e)
    assert found.as_json()["shares_of_ms"] == e.step_ns / 1e6
    lines = screen.screen(found).splitlines()
    assert lines[0] == "step 10.000 ms (mean of 4 traced steps of 1 rank)"
    assert all(line.startswith(start) for line, start in zip(lines[1:3], said, strict=True))
    assert f"of {found.shares_of_ms:.3f} ms" in lines[2]
