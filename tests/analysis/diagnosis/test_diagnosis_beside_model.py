"""What a compiler of the model reaches, and what a script does beside its model."""

import pytest

from nightsweep.analysis.diagnosis import verdict
from tests.analysis.diagnosis.diagnosed import ADD, GEMM, MS, STEP, US, of

SCRIPT = {"workload": "command", "command": "train.py", "launcher": "none"}
COMPILE = {"compile": "default"}
ROW = MS // 2
"""The length of a kernel; of a row of n neighbours n - 1 could be saved."""


def script(inside=0, outside=0, backward=0, name=ADD, ranges=True, beside="loss", **more):
    """A step of products, and of rows of others after each: in the model's forward pass, then outside of it, and in a
    backward pass, in whose thread no range tells which is which."""

    def make(run, start):
        at, launch = start, start + 10 * US
        for often, place, thread in ((inside, "forward", 1), (outside, beside, 1), (backward, None, 2)):
            begun = launch
            run.kernel(at, at + ROW, GEMM, launch, thread=thread)
            for _ in range(often):
                at, launch = at + ROW, launch + 10 * US
                run.kernel(at, at + ROW, name, launch, thread=thread, **more)
            at, launch = at + ROW, launch + 10 * US
            if place == beside or (place and ranges):
                run.range(place, begun - US, launch - US)
        run.kernel(at, start + STEP, GEMM, launch)

    return make


def found(folder, kind, **more):
    """The causes of a kind, the first one first: share of the step and remedy."""
    made = verdict.judge(of(folder, script(**more), settings=SCRIPT)).causes
    return [(round(cause.share, 3), dict(cause.remedy)) for cause in made if cause.kind == kind]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({"inside": 5}, [(0.15, COMPILE)]),
        ({"outside": 5}, [(0.15, {})]),
        ({"outside": 5, "ranges": False}, [(0.15, COMPILE)]),
        ({"inside": 5, "outside": 3}, [(0.15, COMPILE), (0.075, {})]),
        # Of the backward pass as large a part as of what is known.
        ({"outside": 5, "backward": 5}, [(0.3, {})]),
        ({"inside": 3, "outside": 5, "backward": 4}, [(0.225, {}), (0.113, COMPILE)]),
    ],
)
def test_neighbours_outside_of_the_model_are_fused_by_no_setting(tmp_path, rows, expected):
    assert found(tmp_path, "recompute_or_unfused", **rows) == expected


def test_the_time_of_a_backward_pass_counts_once(tmp_path):
    """ms a step of the additions that are shown of either part: nine could be saved, of half a millisecond each."""
    made = verdict.judge(of(tmp_path, script(inside=3, outside=5, backward=4), settings=SCRIPT)).causes
    times = [cause.evidence[0].value for cause in made if cause.kind == "recompute_or_unfused"]
    assert times == pytest.approx([3.0, 1.5]) and sum(times) == pytest.approx(9 / 2)


@pytest.mark.parametrize(("place", "remedy"), [("inside", COMPILE), ("outside", {})])
def test_few_blocks_outside_of_the_model_are_no_compiler_s(tmp_path, place, remedy):
    product = {"name": GEMM, "blocks": 33}
    assert found(tmp_path, "low_occupancy", **{place: 4}, **product) == [(0.15, remedy)]


@pytest.mark.parametrize("optimizer", ["optimizer", "Optimizer.step#SGD.step"])
def test_few_blocks_of_an_optimizer_are_not_the_script_s_own(tmp_path, optimizer):
    product = {"name": GEMM, "blocks": 33}
    assert found(tmp_path, "low_occupancy", outside=4, beside=optimizer, **product) == [(0.15, COMPILE)]


@pytest.mark.parametrize(("inside", "remedy"), [(21, {"compile": "reduce-overhead"}), (19, {})])
def test_no_setting_records_graphs_of_what_is_mostly_outside_of_the_model(tmp_path, inside, remedy):
    """Forty short kernels a step, each launched when the one before is long over."""

    def make(run, start):
        apart = STEP // 40
        for n in range(40):
            run.kernel(start + n * apart + 20 * US, start + n * apart + 25 * US, GEMM, start + n * apart + 10 * US)
        run.range("forward", start + 5 * US, start + (inside - 1) * apart + 15 * US)

    first, *_ = verdict.judge(of(tmp_path, make, settings=SCRIPT)).causes
    assert (first.kind, first.remedy) == ("launch_bound", remedy)
    assert first.advice.endswith("of which no setting records a graph") == (not remedy)
