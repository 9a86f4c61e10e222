"""`nightsweep compare`: differences that are there are told, and those that are not are not."""

import dataclasses
import json

import numpy as np
import polars as pl
import pytest
from scipy.stats import ttest_ind

from analysis.diagnosis import comparison
from analysis.diagnosis.evidence.evidence import Evidence
from analysis.tools import cli
from jobs.point.point import complete
from tests.analysis.diagnosis.diagnosed import MS, US, evidence, steps_of, written

IMAGE = {"workload": "image", "model": "resnet50", "device": "cuda"}


def noisy(seed, compute):
    """Steps of 10 ms, some shorter and some longer, of which so much is compute; the rest waits for the loader."""
    rng = np.random.default_rng(seed)

    def make(run, start):
        length = compute + int(rng.normal(0, 100)) * US
        run.range("data", start + length, start + 10 * MS)
        run.kernel(start, start + length, at=start)

    return [steps_of(12, 10 * MS, make)]


def timed(mean, seed=0, count=30, spread=0.2, samples=64):
    rng = np.random.default_rng(seed)
    steps = rng.normal(mean, spread, count)
    return pl.DataFrame(
        {"rank": 0, "step": range(count), "step_ms": steps, "data_ms": 0.0, "samples": samples, "alloc_retries": 0}
    )


def test_the_interval_is_welch_s():
    a, b = (timed(mean, seed)["step_ms"].to_numpy() for seed, mean in enumerate((10.0, 10.3)))
    found = comparison.difference(a, b[:7])
    interval = ttest_ind(b[:7], a, equal_var=False).confidence_interval(0.95)
    assert found.by == pytest.approx((interval.low + interval.high) / 2)
    assert found.half == pytest.approx((interval.high - interval.low) / 2)


@pytest.mark.parametrize(
    ("mean", "verdict"), [(9.0, "faster"), (11.0, "slower"), (10.05, "no difference beyond noise")]
)
def test_verdicts_on_timed_steps(mean, verdict):
    found = comparison.compare_runs(Evidence(steps=timed(10.0)), Evidence(steps=timed(mean, 1)))
    assert found.verdict == verdict and found.timed and found.of == "step"


def test_the_same_run_twice_is_no_difference():
    """Of 40 pairs of runs that are alike two would differ by the interval alone; the noise level leaves none."""
    verdicts = [
        comparison.compare_runs(
            Evidence(steps=timed(10.0, 2 * n, spread=0.1)), Evidence(steps=timed(10.0, 2 * n + 1, spread=0.1))
        ).verdict
        for n in range(40)
    ]
    assert set(verdicts) == {"no difference beyond noise"}


def test_batches_of_different_sizes_are_compared_by_the_sample():
    one = Evidence(steps=timed(10.0), point=complete(IMAGE))
    other = Evidence(steps=timed(15.0, samples=128), point=complete({**IMAGE, "micro_batch": 64}))
    found = comparison.compare_runs(one, other)
    assert (
        found.of == "sample"
        and found.verdict == "faster"
        and found.step.by / found.step.a == pytest.approx(-0.25, abs=0.01)
    )
    assert found.settings == {"micro_batch": (32, 64)}


def test_parts_that_changed(capsys, tmp_path):
    folders = [written(noisy(seed, compute), tmp_path / str(seed)) for seed, compute in ((1, 6 * MS), (2, 4 * MS))]
    assert cli.main(["compare", *map(str, folders), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "no difference beyond noise"  # the loader waits where the GPU is faster
    compute, loader = found["parts"]["compute"], found["parts"]["idle_data_wait"]
    assert compute["difference_ms"] == pytest.approx(-2, abs=0.1) and compute["beyond_noise"] is True
    assert loader["difference_ms"] == pytest.approx(2, abs=0.1) and loader["beyond_noise"] is True
    assert cli.main(["compare", *map(str, folders)]) == 0
    shown = capsys.readouterr().out
    assert "verdict: no difference beyond noise" in shown and "compute" in shown


def test_one_step_cannot_tell(tmp_path):
    one = evidence(noisy(1, 6 * MS), tmp_path)
    short = dataclasses.replace(one.lanes[0], steps=one.lanes[0].steps.head(1))
    assert comparison.compare_runs(one, Evidence((short,))).verdict.startswith("cannot be said")


def test_nothing_to_compare_is_one_line(capsys, tmp_path):
    (tmp_path / "point.json").write_text("{}")
    assert cli.main(["compare", str(tmp_path), str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("nightsweep compare: ")
