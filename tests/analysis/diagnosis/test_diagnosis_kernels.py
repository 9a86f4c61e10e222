"""Causes in what the GPU computes, and in its memory, on timelines that are known."""

import dataclasses

import pytest

from nightsweep.analysis.diagnosis import verdict
from nightsweep.jobs.record.launch_files import RankResult
from tests.analysis.diagnosis.diagnosed import ADD, FP32, GEMM, IMAGE, MS, STEP, US, busy, causes, of, shares, timed


def test_products_without_tensor_cores(tmp_path):
    """fp32 on an H200: 66.9 of TF32's 494.7 TFLOP/s."""
    e = of(
        tmp_path,
        lambda r, s: busy(r, s, name=FP32),
        settings=IMAGE,
    )
    assert shares(e) == {"tensor_cores_unused": round(1 - 66.9 / 494.7, 3)}
    assert causes(e)["tensor_cores_unused"].remedy == {"precision": "tf32"}


def test_products_left_in_fp32_beside_16_bits_are_those_of_attention(tmp_path):
    vit = IMAGE | {"model": "vit_s", "precision": "bf16"}
    e = of(tmp_path, lambda r, s: busy(r, s, name=FP32), settings=vit)
    assert causes(e)["tensor_cores_unused"].remedy == {"attention": "flash"}
    e = of(tmp_path, lambda r, s: busy(r, s, name=FP32), settings=vit | {"model": "resnet50"})
    assert causes(e)["tensor_cores_unused"].remedy == {"precision": "bf16_pure"}


@pytest.mark.parametrize(("product", "share"), [(GEMM, 0.6 * 5 / 6), (FP32, 0.4 * (1 - 66.9 / 494.7))])
def test_fused_attention_in_fp32_counts_beside_products_in_16_bits(tmp_path, product, share):
    """6 ms: three products in TF32 in place of one, on tensor cores. Beside products in fp32 these alone count."""
    attention = "fmha_cutlassF_f32_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)"

    def make(run, start):
        busy(run, start, 6 * MS, name=attention)
        busy(run, start, STEP, 6 * MS, name=product)

    found = causes(of(tmp_path, make))["tensor_cores_unused"]
    assert found.share == pytest.approx(share, abs=0.002)
    assert ("attention" in found.advice) == (product == GEMM)


def test_splitting_and_vector_products_could_not_use_them(tmp_path):
    e = of(tmp_path, lambda r, s: busy(r, s, name="void cublasLt::splitKreduce_kernel<32, 16, int, float, float>"))
    assert shares(e) == {}


def test_transposes(tmp_path):
    def make(run, start):
        busy(run, start, 7 * MS)
        run.kernel(start + 7 * MS, start + STEP, "void cudnn::engines_precompiled::nchwToNhwcKernel<__half>(x)", start)

    e = of(tmp_path, make, settings={**IMAGE, "layout": "nchw"})
    assert shares(e) == {"layout_transposes": 0.3} and causes(e)["layout_transposes"].remedy == {"layout": "nhwc"}


def test_batch_norms_in_nchw_leave_sms_empty(tmp_path):
    """3 ms turn layouts, 4 ms are a batch norm with 33 blocks on 132 SMs. Without transposes it is the kernel's own."""
    norm = "void at::native::batch_norm_backward_kernel<c10::BFloat16, c10::BFloat16, float, int>(x)"

    def make(turned):
        def steps(run, start):
            busy(run, start, 3 * MS)
            run.kernel(start + 3 * MS, start + 7 * MS, norm, start, blocks=33)
            run.kernel(
                start + 7 * MS, start + STEP, "void cudnn::nchwToNhwcKernel<__half>(x)" if turned else GEMM, start
            )

        return steps

    assert shares(of(tmp_path / "a", make(True), settings={**IMAGE, "layout": "nchw"})) == {"layout_transposes": 0.6}
    assert shares(of(tmp_path / "b", make(False), settings={**IMAGE, "layout": "nchw"})) == {"low_occupancy": 0.3}


def test_batch_norms_of_pytorch_in_nchw_lose_more_than_empty_sms(tmp_path):
    """As before, but all SMs have a block: of the 4 ms what they were seen to lose. cuDNN's lose nothing then."""

    def make(norm):
        def steps(run, start):
            busy(run, start, 3 * MS)
            run.kernel(start + 3 * MS, start + 7 * MS, norm, start, blocks=132)
            run.kernel(start + 7 * MS, start + STEP, "void cudnn::nchwToNhwcKernel<__half>(x)", start)

        return steps

    own = make("void at::native::batch_norm_backward_kernel<c10::BFloat16, c10::BFloat16, float, int>(x)")
    found = shares(of(tmp_path / "a", own, settings={**IMAGE, "layout": "nchw"}))
    assert found == {"layout_transposes": pytest.approx(0.3 + 0.4 * 0.59)}
    of_cudnn = make("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, (int)512>(x)")
    assert shares(of(tmp_path / "b", of_cudnn, settings={**IMAGE, "layout": "nchw"})) == {"layout_transposes": 0.3}


def test_neighbours_that_could_be_one_kernel(tmp_path):
    """Four elementwise kernels of 1 ms in a row: three of them, of which three quarters."""

    def make(run, start):
        busy(run, start, 6 * MS)
        busy(run, start, STEP, 6 * MS, name=ADD)

    e = of(tmp_path, make, settings=IMAGE)
    assert shares(e) == {"recompute_or_unfused": 0.225}
    assert causes(of(tmp_path / "b", make, settings={**IMAGE, "compile": "default"})).keys() == {"missing_counters"}


@pytest.mark.parametrize(("pieces", "kind"), [(1, "low_occupancy"), (40, "recompute_or_unfused")])
def test_long_kernels_of_a_block_are_not_to_be_fused(tmp_path, pieces, kind):
    """Before an addition of 1 ms, 2 ms of a loss in one block, as one kernel or in pieces shorter than ten launches."""
    loss = "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(x)"

    def make(run, start):
        busy(run, start, 7 * MS)
        for place in range(pieces):
            begin = start + 7 * MS + place * 2 * MS // pieces
            run.kernel(begin, begin + 2 * MS // pieces, loss, start, blocks=1)
        busy(run, start, STEP, 9 * MS, name=ADD)

    found = shares(of(tmp_path, make, settings=IMAGE | {"micro_batch": 64}))
    assert found[kind] > 0.14 and max(found, key=found.get) == kind


@pytest.mark.parametrize(("batch", "kind"), [(8, "small_batch"), (64, "low_occupancy")])
def test_kernels_that_do_not_reach_all_sms(tmp_path, batch, kind):
    e = of(
        tmp_path,
        lambda r, s: busy(r, s, blocks=33),
        settings={**IMAGE, "micro_batch": batch},
        record={"hosts": [{"gpus": [{"memory_bytes": 140 << 30}]}]},
        results=[{"peak_reserved_bytes": 10 << 30}],
    )
    found = causes(e)
    assert found[kind].share == pytest.approx(0.75) and {"small_batch", "low_occupancy"} & found.keys() == {kind}
    if kind == "small_batch":
        assert found[kind].remedy == {"micro_batch": 64}


def test_recomputed_activations_while_memory_is_empty(tmp_path):
    settings = {"workload": "llm", "model": "llama-1b", "activation_checkpointing": True, "compile": "default"}
    facts = {"flops": {"step": 75, "hardware_step": 100}, "peak_reserved_bytes": 20 << 30}
    hosts = {"hosts": [{"gpus": [{"memory_bytes": 140 << 30}]}]}
    e = of(tmp_path, busy, settings=settings, results=[facts], record=hosts)
    assert shares(e) == {"recompute_or_unfused": 0.25}
    assert causes(e)["recompute_or_unfused"].remedy == {"activation_checkpointing": False}


def test_memory_taken_and_given_back(tmp_path):
    def make(run, start):
        run.called("cudaFree", start, start + 3 * MS - 20 * US)
        busy(run, start, STEP, 3 * MS, launch=3 * MS - 5 * US)

    e = of(tmp_path, make, settings={**IMAGE, "empty_cache": True})
    assert shares(e)["allocator_churn"] == pytest.approx(0.298, abs=0.003)
    assert causes(e)["allocator_churn"].remedy == {"empty_cache": False}
    for folder, look in (("b", "steps"), ("c", "traced_steps")):  # of a point that was not timed without a tracer
        found = causes(of(tmp_path / folder, make, settings=IMAGE, **{look: timed(retries=True)}))
        assert found["memory_pressure"].share == pytest.approx(0.298, abs=0.003) and "allocator_churn" not in found


def test_room_for_a_larger_batch_saves_optimizer_time(tmp_path):
    def make(run, start):
        busy(run, start, 6 * MS)
        run.range("optimizer", start + MS, start + 2 * MS)
        run.kernel(start + 6 * MS, start + STEP, "multi_tensor_apply_kernel<FusedAdamMathFunctor>", start + 1500 * US)

    facts, hosts = {"peak_reserved_bytes": 10 << 30}, {"hosts": [{"gpus": [{"memory_bytes": 140 << 30}]}]}
    e = of(tmp_path, make, settings={**IMAGE, "compile": "default"}, results=[facts], record=hosts)
    assert shares(e) == {"memory_headroom": round(0.4 * 7 / 8, 3)}
    assert causes(e)["memory_headroom"].remedy == {"micro_batch": 512}


@pytest.mark.parametrize(("name", "found"), [(ADD, True), ("multi_tensor_apply_kernel<x>", False)])
def test_an_optimizer_that_is_not_fused_stands_apart_from_other_launches(tmp_path, name, found):
    """4 ms of products, then 200 kernels of 10 us of the optimizer, one each 30 us. Of 200 launches one is left, and of
    6 ms 200 x (3.2 us and 2 us between two kernels)."""

    def make(run, start):
        busy(run, start, 4 * MS)
        begin = run.free
        for number in range(200):
            at = start + 4 * MS + number * 30 * US
            run.kernel(at, at + 10 * US, name, at=at - 20 * US)
        run.range("Optimizer.step#AdamW.step", begin, run.free)

    causes = [cause for cause in verdict.judge(of(tmp_path, make)).causes if cause.kind == "launch_bound"]
    fused = [cause for cause in causes if cause.remedy == {"optimizer_kernels": "fused"}]
    assert len(causes) == 1 and bool(fused) == found
    if found:
        assert fused[0].share == pytest.approx(0.6 - 0.2 * 0.52, abs=0.01)


MULTIPLY = "void at::native::vectorized_elementwise_kernel<4, at::native::BUnaryFunctor<float, MulFunctor<float>>>(int)"
COS = "void at::native::vectorized_elementwise_kernel<4, at::native::cos_kernel_cuda>(int)"
NORM = "void at::native::batch_norm_backward_reduce_kernel<c10::BFloat16, float, float, int>(x)"
NORM_NHWC = "void at::native::batch_norm_backward_reduce_channels_last_kernel<4, c10::BFloat16, float, float>(x)"
COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel>>(x)"
)


@pytest.mark.parametrize(("names", "looped"), [([ADD, MULTIPLY], True), ([ADD, GEMM], False)])
def test_a_loop_over_tensors_is_a_few_kernels_without_products(tmp_path, names, looped):
    """Kernels of 2 us, one each 20 us: all in one launch of each, half of the kernels' time is left."""

    def make(run, start):
        for number, at in enumerate(range(start, start + STEP, 20 * US)):
            run.kernel(at + 18 * US, at + 20 * US, names[number % len(names)], at=at + 10 * US, blocks=33)

    found = [cause for cause in verdict.judge(of(tmp_path, make)).causes if "what a loop does for each" in cause.advice]
    assert bool(found) == looped
    if looped:
        assert found[0].kind == "launch_bound" and found[0].remedy == {"compile": "reduce-overhead"}
        assert found[0].share == pytest.approx(0.85, abs=0.01)


def test_a_loop_of_many_kernels_follows_a_shorter_one(tmp_path):
    """20 kernels alike, then ten for each of 40 tensors, the first like these; a product ends the step."""
    names = [ADD] * 20 + [ADD, *[MULTIPLY] * 4, COS, *[MULTIPLY] * 4] * 40

    def make(run, start):
        for number, name in enumerate(names):
            at = start + number * 20 * US
            run.kernel(at + 18 * US, at + 20 * US, name, at=at + 10 * US)
        busy(run, start, STEP, 9 * MS)

    loops = next(cause for cause in verdict.judge(of(tmp_path, make)).causes if "of a loop" in cause.method)
    assert [fact.value for fact in loops.evidence] == [pytest.approx(420, abs=10), pytest.approx(40, abs=1)]


@pytest.mark.parametrize(("ms", "share"), [(2, 0.2), (1, None)])
def test_many_copies_beside_norms_in_nhwc_are_from_one_layout_to_another(tmp_path, ms, share):
    """A tenth of the time slices of channels may take."""

    def make(run, start):
        busy(run, start, 4 * MS, name="sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_cudnn")
        for name, begin, end in ((NORM_NHWC, 4, 5), (COPY, 5, 5 + ms)):
            run.kernel(start + begin * MS, start + end * MS, name, start)
        busy(run, start, STEP, (5 + ms) * MS)

    found = causes(of(tmp_path, make, settings={**IMAGE, "compile": "default", "layout": "nhwc"})).get(
        "layout_transposes"
    )
    assert (found and found.share) == (None if share is None else pytest.approx(share, abs=0.01))


SCRIPT = {"workload": "command", "command": "train.py", "device": "cuda"}


@pytest.mark.parametrize(
    ("said", "cudnn", "remedy", "advice"),
    [
        (None, "", {}, "already"),
        (None, "nchwToNhwcKernel", {"layout": "nhwc"}, "keep images"),
        ("nchw", "", {"layout": "nhwc"}, "keep images"),
        ("nhwc", "nchwToNhwcKernel", {}, "already"),
        ("none", "nchwToNhwcKernel", {}, "over one dimension"),
    ],
)
def test_weights_that_lie_in_nhwc_are_not_to_be_laid_out(tmp_path, said, cudnn, remedy, advice):
    """What turns tensors back in the model is to be found. Without a word of the ranks it is known by whose copies they
    are: cuDNN turns what it is given in NCHW."""

    def make(run, start):
        busy(run, start, 4 * MS, name="sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_cudnn")
        for name, begin, end in ((NORM_NHWC, 4, 5), (COPY, 5, 8), (cudnn or GEMM, 8, 10)):
            run.kernel(start + begin * MS, start + end * MS, name, start)

    settings = {**SCRIPT, "layout": "nhwc"} if said == "none" else SCRIPT  # a switch that has had no effect
    e = dataclasses.replace(of(tmp_path, make, settings=settings), results=[RankResult(rank=0, weights_layout=said)])
    found = causes(e)["layout_transposes"]
    assert found.remedy == remedy and advice in found.advice
