"""Attention that is not fused: what is written of its scores, on timelines that are known."""

import pytest

from tests.analysis.diagnosis.diagnosed import ADD, FP32, GEMM, IMAGE, MS, STEP, busy, of, shares


@pytest.mark.parametrize(("layers", "share"), [(4, 0.75), (1, 0.075)])
def test_what_is_next_to_the_softmax_of_written_out_attention_goes_with_it(tmp_path, layers, share):
    """Between products of 0.5 ms, additions on either side of a softmax: all 6 ms, and half of the products next to
    them, the last of which takes 1 ms. One softmax alone is of the loss: of three kernels in a row two, of which three
    quarters."""
    softmax = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 11, false, false>(x)"

    def make(run, start):
        at = start
        for _ in range(layers):
            for name in (GEMM, ADD, softmax, ADD):
                run.kernel(at, at + MS // 2, name, start)
                at += MS // 2
        busy(run, start, STEP, at - start)

    found = shares(of(tmp_path, make, settings=IMAGE)).get("recompute_or_unfused", 0.0)
    assert found == pytest.approx(share)


@pytest.mark.parametrize(
    ("softmax", "share"),
    [
        ("void (anonymous namespace)::softmax_warp_backward<float, float, float, 11, false, false>(x)", 0.3),
        ("void (anonymous namespace)::softmax_warp_backward<float, float, float, 11, true, false>(x)", 0.0),
        ("void at::native::cunn_SoftMaxBackward<4, float, float, float, LogSoftMaxBackwardEpilogue>(x)", 0.0),
    ],
)
def test_backward_attention_has_two_products_on_each_side_and_a_loss_none(tmp_path, softmax, share):
    """Four times in a step: two products, a softmax and two products of 0.1 ms, then 1 ms of something else: 0.3 ms of
    each are of the scores. Softmaxes with a logarithm are of losses, however many there are."""

    def make(run, start):
        at = start
        for _ in range(4):
            for name in (GEMM, GEMM, softmax, GEMM, GEMM):
                run.kernel(at, at + MS // 10, name, start)
                at += MS // 10
            run.kernel(at, at + MS, "an unknown kernel", start)
            at += MS
        run.kernel(at, start + STEP, "an unknown kernel", start)

    found = of(tmp_path, make, settings=IMAGE)
    assert float(found.saved("scores").mean()) / MS == pytest.approx(4 * share, abs=0.01)


COMPILED_SOFTMAX = "triton_per_fused__safe_softmax_add_exp_expand_prepare_softmax_online_sub_view_where_6"


@pytest.mark.parametrize(
    ("softmax", "products", "kind", "share"),
    [
        (COMPILED_SOFTMAX, FP32, "recompute_or_unfused", 0.4 * (0.5 + 0.5 * (1 - 66.9 / 494.7 / 2))),
        (COMPILED_SOFTMAX, GEMM, "recompute_or_unfused", 0.4 * (0.5 + 0.5 * 0.5)),
        (
            "triton_per_fused__log_softmax_nll_loss_forward_6",
            FP32,
            "tensor_cores_unused",
            0.4 * 0.5 * (1 - 66.9 / 494.7),
        ),
    ],
)
def test_attention_that_a_compiler_took_apart_is_to_be_fused(tmp_path, softmax, products, kind, share):
    """Four times in a step a product of 0.25 ms, a softmax of 0.5 and another product, beside 6 ms of products in 16
    bits: where attention's own products are in fp32, they have no tensor cores because it is not fused."""

    def make(run, start):
        for at in range(start, start + 4 * MS, MS):
            run.kernel(at, at + MS // 4, products, start)
            run.kernel(at + MS // 4, at + 3 * MS // 4, softmax, start)
            run.kernel(at + 3 * MS // 4, at + MS, products, start)
        run.kernel(start + 4 * MS, start + 4 * MS + 1000, "an unknown kernel", start)
        busy(run, start, STEP, 4 * MS + 1000)

    found = shares(of(tmp_path, make))
    assert found[kind] == pytest.approx(share, abs=0.002)
    assert max(found, key=found.get) == kind
