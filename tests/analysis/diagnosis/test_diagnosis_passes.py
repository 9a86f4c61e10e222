"""Causes in how a step's samples are divided among passes, and in sums of gradients, on timelines that are known."""

import pytest

from tests.analysis.diagnosis.diagnosed import GEMM, MS, STEP, US, busy, causes, of, shares

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


@pytest.mark.parametrize("sending", [False, True])
def test_passes_whose_gaps_messages_fill_are_not_merged(tmp_path, sending):
    """Four passes, launched too late, that take 6 of 10 ms on all SMs; messages may take the rest."""

    def make(run, start):
        for at in range(start, start + STEP, 250 * US):
            run.kernel(at + 100 * US, at + 250 * US, at=at + 90 * US)
            if sending:
                run.reduce(at, at + 100 * US, 10_000_000)

    results = [{"passes": 4, "peak_reserved_bytes": 1_000_000_000}] * 2
    found = causes(of(tmp_path, make, ranks=2, results=results, record=RECORD))
    assert ("small_batch" in found) != sending and ("exposed_communication" in found) == sending
    if not sending:
        assert 0.2 < found["small_batch"].share <= 0.4


BEFORE, AFTER = [MAIN] * 24, [MAIN] * 16
FORWARD, BACKWARD = [MAIN] * 5, [AUTOGRAD] * 5
PASSES = (FORWARD + BACKWARD) * 4


@pytest.mark.parametrize(
    ("threads", "share"),
    [
        (BEFORE + PASSES + AFTER, 0.75 * 40 / 80),
        ([MAIN] * 80, 0.75),  # not known which are of passes
        (BEFORE + FORWARD + BACKWARD * 7 + AFTER, 0.75),  # one backward pass where four are known of
        (BEFORE + [MAIN] * 10 + BACKWARD + (FORWARD + BACKWARD) * 3 + AFTER[:11], 0.75 * 40 / 80),
        (BEFORE + PASSES[:30] + FORWARD * 3 + BACKWARD + AFTER[:6], 0.75 * 50 / 80),  # the last one looked at more
    ],
    ids=["apart", "one-thread", "one-backward", "more-before", "long-last"],
)
def test_what_is_of_no_pass_is_not_merged(tmp_path, threads, share):
    """80 launches, one each 125 us, of a rollout, four passes and an evaluation: of those of the passes three quarters
    go."""

    def make(run, start):
        for at, thread in zip(range(start, start + STEP, 125 * US), threads, strict=True):
            run.kernel(at + 105 * US, at + 125 * US, at=at + 90 * US, blocks=33, thread=thread)

    results = [{"passes": 4, "peak_reserved_bytes": 1_000_000_000}]
    found = causes(of(tmp_path, make, results=results, record=RECORD))["small_batch"]
    assert found.share == pytest.approx(share, abs=0.03)


def test_passes_of_several_models_are_not_merged(tmp_path):
    """An optimizer steps after each of the two backward passes, as of a critic and an actor."""
    threads = ([MAIN] * 20 + [AUTOGRAD] * 15 + [MAIN] * 5) * 2

    def make(run, start):
        for place, (at, thread) in enumerate(zip(range(start, start + STEP, 125 * US), threads, strict=True)):
            name = ADAM if place % 40 >= 35 else GEMM
            run.kernel(at + 105 * US, at + 125 * US, name, at=at + 90 * US, blocks=33, thread=thread)

    results = [{"passes": 2, "peak_reserved_bytes": 1_000_000_000}]
    found = causes(of(tmp_path, make, results=results, record=RECORD))
    assert found.keys() >= {"launch_bound"} and "small_batch" not in found


ADAM = "void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float, 4>>(x)"
ROWS = "void (anonymous namespace)::indexing_backward_kernel<c10::BFloat16, 4>(long const*, long const*, x)"
ONES = "void (anonymous namespace)::indexing_backward_kernel_stride_1<c10::BFloat16>(long const*, long const*, x)"
MULTIPLY = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float>>(x)"
EMBEDDING = "void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16, float, long>(x)"


@pytest.mark.parametrize("along", ["innermost", "outer"])
def test_sums_along_rows_that_take_longest_are_fused_away(tmp_path, along):
    """6 of 10 ms, after a kernel of 1 ms and before one of 2, with which it would be read once."""

    def make(run, start):
        run.kernel(start, start + MS, MULTIPLY, start)
        run.kernel(start + MS, start + 7 * MS, f"void at::native::tensor_kernel_scan_{along}_dim<float>(x)", start)
        run.kernel(start + 7 * MS, start + 9 * MS, MULTIPLY, start)
        busy(run, start, STEP, 9 * MS)

    found = shares(of(tmp_path, make))["recompute_or_unfused"]
    assert found == pytest.approx(0.75 * (0.7 if along == "innermost" else 0.3), abs=0.02)


@pytest.mark.parametrize(
    ("name", "share"),
    [(ROWS, 0.9 * 0.4), (ONES, None), (EMBEDDING, None)],
)
def test_gradients_of_a_small_tables_rows_are_added_up_one_by_one(tmp_path, name, share):
    """Four of ten ms."""

    def make(run, start):
        busy(run, start, 6 * MS)
        run.kernel(start + 6 * MS, start + STEP, name, start, blocks=100_000)

    e = of(tmp_path, make)
    assert shares(e).get("low_occupancy") == (None if share is None else pytest.approx(share, abs=0.01))
    if share is not None:
        assert "embedding" in causes(e)["low_occupancy"].advice
