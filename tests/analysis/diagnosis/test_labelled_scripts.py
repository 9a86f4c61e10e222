"""What the diagnosis says of scripts of others whose fix was measured (tests/labelled/scripts.yaml)."""

import json
import math
import shutil

import pytest

from nightsweep.analysis.diagnosis import verdict
from nightsweep.analysis.diagnosis.evidence import sources
from tests.labelled import packed, score, scripts
from tests.labelled.misses import NOT_FIRST, NOT_GIVEN, OFF

RUNS = {run.name: run for run in [run for run in scripts.load() if (score.KEPT / run.name).is_dir()][::3]}
"""One of three, in their order; `python -m tests.labelled.score --half all` looks at all of them."""
FIXES = score.measured()


@pytest.fixture(scope="module")
def found():
    return dict(zip(RUNS, score.diagnosed([(score.KEPT / name, False) for name in RUNS]), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_first_causes_and_predictions(found, name):
    right, predicted, _ = score.judged(RUNS[name], found[name], FIXES)
    assert right in (None, name not in NOT_FIRST)
    assert predicted in (None, name not in OFF)


def entropy_left_out(loss, words=32_000, smoothing=0.1):
    """The loss of a divergence from smoothed labels, with the labels' own entropy, which has no gradient."""
    right, other = 1 - smoothing + smoothing / words, smoothing / words
    return loss - right * math.log(right) - (words - 1) * other * math.log(other)


AS_PRINTED = {
    "micro_nanogpt": lambda loss: 16 * loss,  # of one of its 16 passes
    "passes_translate": lambda loss: 16 * loss,
    "parts_posterior": lambda loss: 16 * loss,
    "parts_peptides": lambda loss: 8 * loss,  # likewise
    "accumulate_logs": lambda loss: 4 * loss,
    "split_shapes": lambda loss: 32 * loss,
    "smoothing_translate": entropy_left_out,
}
"""How the fix's side would print the slow side's loss."""
OTHERWISE = {
    "uneven_detector": "rank 0, whose loss this is, has pictures of another size: the cause itself",
    "blocks_crystals": "each rank has other crystals; the mean over ranks is the same",
    "healthy_preferences": "bf16 rounds away most of what adapters add to a layer; the compiler adds before it rounds",
    "healthy_preferences_ddp": "likewise",
    "cache_grpo": "the two sides sample other answers, and the loss of a policy is near 0 on its own",
    "prompts_grpo": "likewise",
    "moves_routes": "likewise, for lengths of routes are rounded otherwise",
    "healthy_compression": "a compiled model draws other noise, and its loss falls fast in these steps",
    "sites_eeg": "each rank has other recordings; the mean over ranks is the same",
    "deal_meshes": "each rank has other meshes; the mean over ranks is the same",
    "healthy_glaciers": "its loss jumps from step to step, by up to a factor of ten, and so rounding grows",
    "layout_cuneiform": "likewise: of two networks against each other",
    "boxes_pillars": "its loss falls tenfold in these steps, and rounding with it",
    "pillars_pillars": "likewise",
    "rounds_plankton": "pictures that were got wrong come more often: with other workers other ones are drawn",
    "turns_plankton": "likewise",
    "most_deblur": "in NHWC other kernels round otherwise, of a loss that falls fast: 2 %",
}
"""Whose losses differ, and why the fix trains the same all the same."""


def test_the_fixes_change_no_loss():
    """Both sides train the same: what a fix gave is of speed alone."""
    excepted = {run.name for run in scripts.load() if run.void} | OTHERWISE.keys()
    for name, pairs in json.loads(score.PAIRS.read_text()).items():
        slow, fix = (pairs["loss"][side] for side in ("slow", "fix"))
        if name not in excepted and slow and fix:
            assert abs(AS_PRINTED.get(name, float)(slow[0]) - fix[0]) < 0.05 * abs(fix[0]), name


def test_what_was_tried_changes_no_loss():
    pairs = [(name, own["loss"]) for name, own in json.loads(score.TRIED.read_text()).items() if "loss" in own]
    for name, loss in pairs:
        # lion_preferences is not counted: docs/diagnosis-accuracy.md
        if loss["slow"] and name not in OTHERWISE | {"lion_preferences": ""}:
            assert loss["tried"][0] == pytest.approx(loss["slow"][0], rel=0.01), name
    assert len(pairs) == 107


@pytest.mark.slow
def test_its_own_remedies_give_what_is_predicted(found):
    tried = score.measured(score.TRIED, "tried")
    right = {name: score.remedy_as_predicted(run, found[name], tried) for name, run in RUNS.items()}
    assert {name for name, own in right.items() if own is False} == NOT_GIVEN.keys() & RUNS.keys()
    assert list(right.values()).count(True) > 10


def test_of_one_rank_alone_the_cause_on_the_other_is_not_guessed(tmp_path):
    """Rank 0 saves its weights in each step; rank 1 waits for it in the middle of its averaging."""
    whole = packed.unpacked(score.KEPT / "saves_rank0", tmp_path)
    alone = [trace for trace in whole.glob("traced/trace-r*") if "-r1." in trace.name]
    found = verdict.judge(sources.gather(alone))
    assert found.healthy is None and all(cause.share < 0.01 for cause in found.causes)
    told = {fact.what: fact.value for cause in found.causes for fact in cause.evidence}
    assert told["trace of the other ranks"] == "up to 98% of the step may be waiting for them"


def test_workers_that_start_anew_are_told_from_other_work(tmp_path):
    """epochs_pose starts its workers once in six steps, and once in the three that are traced. Without the seed that
    PyTorch draws before it, that would be work of the host."""
    whole = packed.unpacked(score.KEPT / "epochs_pose", tmp_path)
    (trace,) = whole.glob("traced/trace-r*")
    evidence = sources.gather([trace])
    cause = next(cause for cause in verdict.judge(evidence).causes if cause.kind == "loader_wait")
    assert cause.remedy == {"persistent_workers": True} and cause.advice.startswith("keep the loader's workers")
    anew = next(fact.value for fact in cause.evidence if fact.what == "starting its workers anew")
    assert anew == pytest.approx(82.9, abs=0.1) and cause.share == pytest.approx(anew / (evidence.step_ns / 1e6))
    assert evidence.parts["idle_data_wait"] == pytest.approx(121.2, abs=0.1)
    trace.write_text(trace.read_text().replace("aten::random_", "aten::fill_"))
    evidence = sources.gather([trace])
    assert verdict.judge(evidence).causes[0].kind == "host_work"
    assert evidence.parts["idle_data_wait"] == pytest.approx(121.2 - anew, abs=0.2)


def first_kind(folder, bare=True):
    causes = score.diagnose((folder, bare))["causes"]
    return next((cause["kind"], cause["rank"]) for cause in causes if cause["share"] >= 0.01)


def test_work_after_a_wait_is_named_not_the_wait():
    """The host computes on what it has read from the device; without either the device would go on meanwhile."""
    assert first_kind(score.KEPT / "tree_replay", bare=False) == ("host_work", None)


@pytest.mark.parametrize("name", ["loader_imagenet", "saves_rank0", "pageable_vision_loop", "tf32_trainer"])
def test_a_trace_that_is_cut_or_has_no_ranges_tells_the_same(name, tmp_path):
    """Bare traces: whole; cut in the middle of the last step; and without any range or annotation."""
    whole = packed.unpacked(score.KEPT / name, tmp_path / "whole")
    for other in ("cut", "plain"):
        shutil.copytree(whole, tmp_path / other / name)
        for path in (tmp_path / other / name).glob("traced/trace-r*"):
            trace = json.loads(path.read_bytes())
            events = trace["traceEvents"]
            last = max(event["ts"] for event in events if event["name"].startswith("step "))
            end = (last + max(event["ts"] for event in events)) / 2
            trace["traceEvents"] = [
                event
                for event in events
                if (event["ts"] < end if other == "cut" else event["cat"] != "user_annotation")
            ]
            path.write_text(json.dumps(trace))
    found = {other: first_kind(tmp_path / other / name) for other in ("whole", "cut", "plain")}
    assert found["cut"] == found["plain"] == found["whole"]
