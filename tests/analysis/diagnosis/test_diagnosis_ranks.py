"""Causes between ranks, on timelines that are known."""

import dataclasses
from pathlib import Path

import polars as pl
import pytest

from nightsweep.analysis.diagnosis import over_ranks, screen, verdict
from nightsweep.analysis.diagnosis.evidence import messages, sources
from nightsweep.jobs.point.point import complete
from tests.analysis.diagnosis.diagnosed import GEMM, LAUNCH, LINKED, MS, STEP, US, busy, causes, of, shares
from tests.labelled import packed

DATA = Path(__file__).parents[2] / "data"


def reducing(start_of, end, size, at=5 * MS):
    """Ranks of which each begins its all-reduce at a time of its own; computing before."""

    def make(run, start):
        busy(run, start, at)
        run.reduce(start + start_of(run.rank), start + end, size)
        busy(run, start, STEP, end)

    return make


def test_a_fast_link_that_nothing_hides(tmp_path):
    """0.5 GB in 2 ms is 250 GB/s on the bus of two ranks: no slow link. The GPU could compute meanwhile."""
    e = of(tmp_path, reducing(lambda _: 5 * MS, 7 * MS, 500_000_000), ranks=2, record=LINKED)
    assert shares(e) == {"exposed_communication": 0.2}


@pytest.mark.parametrize(
    ("communication", "proposed"), [("default", {}), ("serial", {"zero_communication": "overlapped"})]
)
def test_stage_3_is_not_told_to_do_what_it_does(tmp_path, communication, proposed):
    """DeepSpeed communicates beside the backward pass in stage 3 if nothing else is said."""
    settings = {"workload": "llm", "model": "llama-tiny", "strategy": "zero3", "zero_communication": communication}
    settings["ranks_per_node"] = 2
    e = of(tmp_path, reducing(lambda _: 5 * MS, 7 * MS, 500_000_000), ranks=2, record=LINKED, settings=settings)
    remedy = causes(e)["exposed_communication"].remedy
    assert {name: value for name, value in remedy.items() if name == "zero_communication"} == proposed


def test_collectives_of_two_kinds_are_numbered_each_by_itself(tmp_path):
    """Of 1 ms each; rank 1 comes to the first 3 ms late, for its device has more to do."""

    def make(run, start):
        until = (2 + 3 * run.rank) * MS
        busy(run, start, until)
        run.reduce(start + until, start + 6 * MS, 120_000_000, "all_gather")
        busy(run, start, 8 * MS, 6 * MS)
        run.reduce(start + 8 * MS, start + 9 * MS, 240_000_000)
        busy(run, start, STEP, 9 * MS)

    found = shares(of(tmp_path, make, ranks=2, record=LINKED))
    assert found["exposed_communication"] == pytest.approx(0.2, abs=0.01) and found["straggler"] > 0.1


def test_a_slow_link(tmp_path):
    """16 MiB and more at 10 GB/s, where NVLink's 450 would let 247.5 through."""
    e = of(tmp_path, reducing(lambda _: 5 * MS, 7 * MS, 20_000_000), ranks=2, record=LINKED)
    found = causes(e)
    assert found["slow_interconnect"].share == pytest.approx(0.2 * (1 - 10 / 247.5), abs=0.001)
    assert found["exposed_communication"].share < 0.01 if "exposed_communication" in found else True


def held_up(size):
    """Eight kernels of 0.25 ms alone, and eight that do the same beside four messages and take twice as long."""

    def make(run, start):
        for took, begin in ((MS // 4, 0), (MS // 2, 2 * MS)):
            for place in range(8):
                run.kernel(start + begin + place * took, start + begin + (place + 1) * took, at=start + place * LAUNCH)
        for place in range(4):
            at, call = start + (2 + place) * MS, start + (30 + place) * LAUNCH
            run.reduce(at, at + MS, size, at=call)
        run.reduced = None
        busy(run, start, STEP, 6 * MS, name="another kernel")

    return make


@pytest.mark.parametrize(("size", "slow"), [(500_000, False), (20_000_000, True)])
def test_kernels_that_slow_messages_hold_up_count_with_the_link_and_once(tmp_path, size, slow):
    """Small messages say nothing of the link. Of 20 MB at 20 GB/s, where 247.5 are reachable, kernels beside them are
    held up for as much less; the rest of that is of communication as such, and together no more than all of it. The
    last kernel has another neighbour than those alone."""
    e = of(tmp_path, held_up(size), ranks=2, record=LINKED)
    fast, rest = messages.on_fast_link(e), messages.beside_none(e)
    found = [1 - e.what_if.after(*own) / e.step_ns for own in ((fast,), (fast, rest))]
    assert found[1] == pytest.approx(7 * 0.25 / 10, abs=0.002)
    assert found[0] == pytest.approx(found[1] * (1 - 20 / 247.5) if slow else 0, abs=0.002)
    assert ("slow_interconnect" in causes(e)) == slow


def test_small_messages(tmp_path):
    """20 reductions of 100 us and 4 kB each: as one they would take 100 us."""

    def make(run, start):
        busy(run, start, 5 * MS)
        for place in range(20):
            run.reduce(start + 5 * MS + place * 100 * US, start + 5 * MS + (place + 1) * 100 * US, 4096)
        busy(run, start, STEP, 7 * MS)

    found = shares(of(tmp_path, make, ranks=2, record=LINKED))
    assert found["small_messages"] == pytest.approx(0.2 * 19 / 20, abs=0.001)


def test_what_a_late_rank_does_is_the_cause_and_names_it(tmp_path):
    """Rank 1 loads for 3 ms; rank 0 waits for it in the all-reduce, its host for room in the queue."""

    def make(run, start):
        if run.rank:
            run.range("data", start, start + 3 * MS)
        else:
            run.called("cudaLaunchKernel", start + 6 * MS, start + 8510 * US)
        since = 3 * MS * run.rank
        busy(run, start, 5 * MS + since, since)
        run.reduce(start + 5 * MS + since, start + 8500 * US, 400_000_000)
        busy(run, start, STEP, 8500 * US)

    found = causes(of(tmp_path, make, ranks=2, record=LINKED))
    assert found["loader_wait"].rank == 1 and found["loader_wait"].share == pytest.approx(0.3, abs=0.01)
    assert "straggler" not in found


def test_a_rank_that_only_began_later_is_none_to_wait_for(tmp_path):
    """Rank 1 launches a piece every ms, of 0.5 ms each. So does rank 0, which is ahead, and waits in each reduction:
    what holds up both is told of rank 1."""

    def make(run, start):
        for at in range(start, start + STEP, MS):
            if run.rank:
                busy(run, at, 400 * US, launch=-20 * US, piece=400 * US)
            else:
                busy(run, at, 400 * US, piece=400 * US)
            late = at + 900 * US
            run.reduce(
                late if run.rank else at + 400 * US, at + MS, 20_000_000, at=late - 20 * US if run.rank else None
            )

    found = causes(of(tmp_path, make, ranks=2, record=LINKED))
    assert "straggler" not in found and found["launch_bound"].share > 0.4


def test_ranks_that_take_turns(tmp_path):
    """In each step the host of one of them is 2 ms late, and has no lead, as it waits for the end of each step: neither
    rank is at fault."""

    def make(run, start):
        late = 2 * MS * ((start // STEP + run.rank) % 2)
        busy(run, start, 4 * MS + late, late, launch=late)
        run.reduce(start + 4 * MS + late, start + 7 * MS, 400_000_000)
        busy(run, start, STEP, 7 * MS)

    found = causes(of(tmp_path, make, count=9, ranks=2, record=LINKED))
    assert "straggler" not in found
    assert (found["host_work"].rank, found["host_work"].share) == (None, pytest.approx(0.2, abs=0.01))


def test_the_rank_that_is_named_is_the_one_that_is_told_of(tmp_path):
    """Rank 1 takes and gives back memory for 4 ms of each step, by two calls; the mean of both ranks is one."""

    def make(run, start):
        if run.rank:
            run.called("cudaMalloc", start, start + 2 * MS)
            run.called("cudaFree", start + 2 * MS, start + 4 * MS)
        busy(run, start, (2 + 4 * run.rank) * MS, 4 * MS * run.rank)
        run.reduce(start + (2 + 4 * run.rank) * MS, start + 7 * MS, 400_000_000)
        busy(run, start, STEP, 7 * MS)

    found = causes(of(tmp_path, make, ranks=2, record=LINKED))["allocator_churn"]
    assert (found.rank, [fact.value for fact in found.evidence]) == (1, [2.0])


def test_no_collectives_no_word_of_communication(tmp_path):
    assert not [c for c in causes(of(tmp_path, busy)).values() if c.cause == "communication"]


def test_one_rank_of_several_tells_too_little(tmp_path):
    e = of(tmp_path, reducing(lambda _: 5 * MS, 7 * MS, 500_000_000))
    found = causes(e)
    assert {"exposed_communication", "slow_interconnect", "small_messages", "straggler"}.isdisjoint(found)
    told = {fact.what: fact.value for fact in found["missing_trace"].evidence}
    assert told["trace of the other ranks"] == "up to 20% of the step may be waiting for them"


def test_a_run_is_not_healthy_for_want_of_what_would_tell(tmp_path):
    """Of one rank of two, half of the step is a collective: whether that waits or sends, only the other could tell.
    The host, which launches once in 10 ms, would hold the step up without it."""

    def make(run, start):
        busy(run, start, 5 * MS)
        run.reduce(start + 5 * MS, start + STEP - US, 400_000_000)

    found = verdict.judge(of(tmp_path, make, record=LINKED))
    assert found.healthy is None and shares(found.evidence) == {}
    assert "leaves open whether this is healthy" in screen.screen(found)


def test_idle_time_without_launching_calls_is_not_called_healthy(tmp_path):
    def make(run, start):
        for at in range(start, start + STEP, MS):
            run.add("kernels", GEMM, at, at + 500 * US, correlation=None, stream=7)
        run.called("cudaEventSynchronize", start + STEP - US, start + STEP)

    found = verdict.judge(of(tmp_path, make))
    assert found.healthy is None and shares(found.evidence) == {}
    assert "leaves open whether this is healthy" in screen.screen(found)


@pytest.mark.parametrize("sent", [1_000_000, 1_000])
def test_two_stages_of_a_pipeline_wait_for_each_other(tmp_path, sent):
    """Sends between two ranks are matched. The first stage waits for 1.9 ms of 10, the second for 2. Messages are not
    to be joined, however small."""

    def make(run, start):
        at = 0
        for computes, end in ((2, 2.1), (1.9, 6)) if run.rank == 0 else ((0, 2.1), (3.8, 6)):
            busy(run, start, round((at + computes) * MS), round(at * MS))
            run.reduce(start + round((at + computes) * MS), start + round(end * MS), sent, "send_recv")
            at = end
        busy(run, start, STEP, 6 * MS)

    settings = {"workload": "llm", "model": "llama-1b", "strategy": "pp", "ranks_per_node": 2, "grad_accum": 2}
    for known in (settings, None):
        e = of(tmp_path / str(known is None), make, ranks=2, settings=known)
        found = causes(e)
        assert found["pipeline_bubble"].share == pytest.approx(0.1, abs=0.01)
        assert found["pipeline_bubble"].remedy == ({"grad_accum": 4} if known else {})
        assert "straggler" not in found and pl.concat(messages.small(e)).is_empty()


@pytest.mark.parametrize(("sent_ms", "healthy"), [(0.5, True), (2, None)])
def test_what_no_cause_explains_leaves_open_whether_a_run_is_healthy(tmp_path, monkeypatch, sent_ms, healthy):
    begin = round((9 - sent_ms) * MS)
    e = of(tmp_path, reducing(lambda _: begin, 9 * MS, 500_000_000, at=begin), ranks=2, record=LINKED)
    monkeypatch.setattr(verdict, "RULES", [])
    found = verdict.judge(e)
    assert found.healthy is healthy
    said = "GPUs neither compute nor copy for 20% of the step, and all causes explain 0%"
    assert (said in screen.screen(found)) == (healthy is None)


def test_a_ring_of_sends_is_no_pipeline(tmp_path):
    """Each of four ranks sends for 2.1 of 10 ms, beside no compute; sizes are known, other sides are not."""

    def make(run, start):
        busy(run, start, 4 * MS)
        for at, took in ((4.0, 0.1), (4.1, 1.0), (5.1, 1.0)):
            begin, end = start + round(at * MS), start + round((at + took) * MS)
            run.reduce(begin, end, round(took * 1e6), "send_recv", ranks=4)
        busy(run, start, STEP, round(6.1 * MS))

    e = of(tmp_path, make, ranks=4)
    assert shares(e) == {"exposed_communication": pytest.approx(0.21, abs=0.01)}
    assert set(pl.concat(messages.small(e))["bytes"]) == {100_000, 1_000_000}


@pytest.mark.parametrize("known", [True, False], ids=["settings", "traces alone"])
def test_stages_of_a_pipeline_wait_for_each_other(tmp_path, known):
    """Llama-8B in four stages on H200s, four micro-batches a step: a stage waits for three of seven parts of the step,
    and with eight micro-batches would for three of eleven: 3/14 less time a sample. Transfers take 0.07 to 0.2 ms."""
    e = sources.gather(sorted(packed.unpacked(DATA / "pipeline_of_four", tmp_path).glob("trace-r*")))
    if known:
        settings = {"workload": "llm", "model": "llama-8b", "strategy": "pp", "ranks_per_node": 4, "grad_accum": 4}
        e = dataclasses.replace(e, point=complete(settings))
    first, *others = verdict.judge(e).causes
    assert first.kind == "pipeline_bubble"
    assert first.share == pytest.approx(3 / 14, abs=0.02)
    assert first.remedy == ({"grad_accum": 8} if known else {})
    assert not {"exposed_communication", "straggler"} & {cause.kind for cause in others}
    with pytest.raises(ValueError, match="pp" if known else "not stages of a pipeline"):
        over_ranks.predict(e, [8])
