"""Causes in how a step's samples are divided among passes, and in sums of gradients, on timelines that are known."""

import pytest

from tests.analysis.diagnosis.diagnosed import MS, STEP, US, busy, causes, of, shares

RECORD = {"hosts": [{"gpus": [{"memory_bytes": 150_000_000_000}]}]}
MAIN, AUTOGRAD = 1, 2


@pytest.mark.parametrize(("memory", "share"), [(1_000_000_000, 0.87), (120_000_000_000, None)])
def test_several_small_passes_could_be_one_where_memory_has_room(tmp_path, memory, share):
    """Eight passes of ten products with a block for every fourth SM, one each 125 us; merged, an eighth of the launches
    is left, and of each product a quarter."""

    def make(run, start):
        for at in range(start, start + STEP, 125 * US):
            run.kernel(at + 105 * US, at + 125 * US, at=at + 90 * US, blocks=33)

    results = [{"passes": 8, "peak_reserved_bytes": memory}]
    found = causes(of(tmp_path, make, results=results, record=RECORD))
    merged = found.get("small_batch")
    assert (merged is not None and "8 passes in one" in merged.method) == (share is not None)
    if merged is not None and share is not None:
        assert merged.share == pytest.approx(share, abs=0.02) and "8 times the samples" in merged.advice


@pytest.mark.parametrize("apart", [True, False])
def test_what_comes_before_the_passes_is_not_merged_with_them(tmp_path, apart):
    """40 launches, as of a rollout, then four passes of five forward and five backward, one each 125 us: three quarters
    of those of the passes go. Where all are of one thread it is not known which they are."""
    passes = [MAIN] * 40 + ([MAIN] * 5 + [AUTOGRAD] * 5) * 4

    def make(run, start):
        for at, thread in zip(range(start, start + STEP, 125 * US), passes, strict=True):
            thread = thread if apart else MAIN
            run.kernel(at + 105 * US, at + 125 * US, at=at + 90 * US, blocks=33, thread=thread)

    results = [{"passes": 4, "peak_reserved_bytes": 1_000_000_000}]
    found = causes(of(tmp_path, make, results=results, record=RECORD))["small_batch"]
    assert found.share == pytest.approx(0.75 / 2 if apart else 0.75, abs=0.03)


ROWS = "void (anonymous namespace)::indexing_backward_kernel<c10::BFloat16, 4>(long const*, long const*, x)"
ONES = "void (anonymous namespace)::indexing_backward_kernel_stride_1<c10::BFloat16>(long const*, long const*, x)"
EMBEDDING = "void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16, float, long>(x)"


@pytest.mark.parametrize(("name", "share"), [(ROWS, 0.9 * 0.4), (ONES, None), (EMBEDDING, None)])
def test_gradients_of_a_small_tables_rows_are_added_up_one_by_one(tmp_path, name, share):
    """Four of ten ms, in blocks enough for all SMs."""

    def make(run, start):
        busy(run, start, 6 * MS)
        run.kernel(start + 6 * MS, start + STEP, name, start)

    e = of(tmp_path, make)
    assert shares(e).get("low_occupancy") == (None if share is None else pytest.approx(share, abs=0.01))
    if share is not None:
        assert "embedding" in causes(e)["low_occupancy"].advice
