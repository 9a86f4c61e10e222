"""`nightsweep compare`: differences that are there are found, and those that are not are not."""

import json
import shutil

import numpy as np
import polars as pl
import pytest
import scipy

from nightsweep.analysis.diagnosis import comparison
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tools import cli
from nightsweep.analysis.tools.compare import screen
from nightsweep.jobs.host.facts import ROOT, Host
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.record.record import Record
from tests.analysis.diagnosis.diagnosed import MS, US, steps_of, written
from tests.fakes.ranks import unpack

DATA = ROOT / "data/h200-2026-11-21"
ONE, OTHER = "174573f6e51a", "4cf452770303"
"""Points of the claim on layouts: NHWC, NCHW."""
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
        {"rank": 0, "step": range(count), "step_ms": steps, "data_ms": 0.0, "samples": samples, "alloc_retries": 0},
    ).with_columns(loss=1.0)


def test_the_interval_is_welch_s():
    a, b = (timed(mean, seed)["step_ms"].to_numpy() for seed, mean in enumerate((10.0, 10.3)))
    found = comparison.difference(a, b[:7])
    interval = scipy.stats.ttest_ind(b[:7], a, equal_var=False).confidence_interval(0.95)
    assert found.by == pytest.approx((interval.low + interval.high) / 2)
    assert found.half == pytest.approx((interval.high - interval.low) / 2)


def run(mean, seed=0, active=None, **more):
    """A run with such steps; `active`: how busy its SMs were, %."""
    samples = {} if active is None else {0: pl.DataFrame({"sm_active_percent": [active] * 3})}
    return Evidence(steps=timed(mean, seed), samples=samples, **more)


@pytest.mark.parametrize(
    ("mean", "active", "verdict"),
    [
        (6.0, None, "faster"),
        (16.0, None, "slower"),
        (9.0, None, "no difference beyond noise"),  # starts of which nothing is known differ by so much
        (8.7, 95.0, "faster"),
        (11.5, 95.0, "slower"),
        (9.7, 95.0, "no difference beyond noise"),
        (9.0, 20.0, "no difference beyond noise"),
    ],
)
def test_single_starts_are_judged_by_what_such_starts_differ(mean, active, verdict):
    found = comparison.compare_runs([run(10.0, active=active)], [run(mean, 1, active)])
    assert found.verdict == verdict and found.timed and found.of == "step" and found.starts == (1, 1)
    assert "starts on H200s" in found.noise.source


def test_repeats_are_judged_by_their_own_spread():
    """Six starts whose means differ by 0.2 %, though their steps differ by 2 %: 1.5 % more is a difference."""
    one, other = ([run(mean * (1 + n / 500), n) for n in range(3)] for mean in (10.0, 10.15))
    found = comparison.compare_runs(one, other)
    assert (found.verdict, found.starts) == ("slower", (3, 3)) and "3 and 3 repeats" in found.noise.source
    apart = [run(mean, n) for n, mean in enumerate((10.0, 11.5, 13.0))]
    assert comparison.compare_runs(one, apart).verdict == "no difference beyond noise"


def test_repeats_of_one_host_each_do_not_tell_what_hosts_differ_by():
    def starts(mean, *hosts):
        records = [Record(status="ok", hosts=[Host(hostname=host)]) for host in hosts]
        return [run(mean * (1 + n / 500), n, record=record) for n, record in enumerate(records)]

    one, other = starts(10.0, "a", "a", "a"), starts(10.5, "b", "b", "b")
    found = comparison.compare_runs(one, other)
    assert found.verdict == "no difference beyond noise" and "on several hosts" in found.noise.source
    for both in ((one, starts(10.5, "a", "a", "a")), (one, starts(10.5, "b", "b", "a"))):
        assert "3 and 3 repeats" in comparison.compare_runs(*both).noise.source


def test_two_repeats_of_the_same_settings_are_compared_as_they_are():
    """A repeat is one of the other's repeats: it must not be on both sides."""
    points = [complete({**IMAGE, "repeat": n}) for n in range(3)]
    runs = [run(mean, point=point) for mean, point in zip((10.0, 10.1, 10.2), points, strict=True)]
    found = comparison.compare_runs([runs[0], *runs[1:]], [runs[1], runs[0], runs[2]])
    assert found.starts == (1, 1) and found.step.by == pytest.approx(0.1, abs=0.01)
    assert found.verdict == "no difference beyond noise" and "3 repeats" in found.noise.source


def test_batches_of_different_sizes_are_compared_by_the_sample():
    one = Evidence(steps=timed(10.0), point=complete(IMAGE))
    other = Evidence(steps=timed(15.0, samples=128), point=complete({**IMAGE, "micro_batch": 64}))
    found = comparison.compare_runs([one], [other])
    assert found.of == "sample" and found.step.by / found.step.a == pytest.approx(-0.25, abs=0.01)
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


def test_what_marks_beside_parts_mean_is_said(capsys, tmp_path):
    """A copy that is 0.1 us longer in each step differs for certain, but by nothing that is shown."""

    def make(length):
        def step(run, start):
            run.copy(start, start + length, 1 << 20)
            run.kernel(start + MS, start + 6 * MS, at=start)

        return [steps_of(12, 10 * MS, step)]

    folders = [written(make(length), tmp_path / str(length)) for length in (100_000, 100_100)]
    assert cli.main(["compare", *map(str, folders)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1].strip().startswith("+-: half of the 95 % interval") and "*: the difference is larger" in shown[-1]
    (copy,) = (line for line in shown if line.startswith("  copy_htod"))
    assert "+0.000" in copy and "*" not in copy


def test_traces_of_two_tracers_get_no_verdict(capsys, tmp_path):
    names = [str(ROOT / "tests/data/kineto-h200-ddp-r0.json.gz"), str(unpack("ddp-r0", tmp_path))]
    assert cli.main(["compare", *names]) == 0
    shown = capsys.readouterr().out
    assert "verdict: not known: two tracers lengthen steps differently" in shown and "\ntwo tracers: " in shown
    assert cli.main(["compare", names[0], names[0]]) == 0
    assert "two tracers" not in capsys.readouterr().out


def test_a_loss_that_does_not_stay_finite_is_told():
    lost = pl.when(pl.col("step") >= 7).then(float("nan")).otherwise("loss")
    found = comparison.compare_runs([run(10.0)], [Evidence(steps=timed(9.9).with_columns(loss=lost))])
    assert found.diverged == (None, 7)
    assert "B diverged: its loss is not finite in step 7" in screen(found, ("one", "other")).splitlines()


def test_points_of_a_published_data_set_are_compared_with_their_repeats(capsys):
    """Two settings with several starts each, of which the data set has steps and samples in tables alone."""
    points = DATA / "points"
    assert cli.main(["compare", str(points / ONE), str(points / OTHER), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert min(found["starts"]) >= 3 and "repeats of these settings" in found["noise_from"]
    assert found["verdict"] == "slower" and "layout" in found["settings"]
    assert cli.main(["diagnose", str(points / ONE)]) == 0
    assert "without a trace" in capsys.readouterr().out


def test_repeats_that_were_disturbed_do_not_count_and_a_disturbed_point_is_marked(capsys, tmp_path):
    """ONE of the data set is said to be disturbed, and so is one of OTHER's repeats."""
    shutil.copytree(DATA, tmp_path / "set")
    names = [str(tmp_path / "set/points" / name) for name in (ONE, OTHER)]
    assert cli.main(["compare", *names, "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    table = tmp_path / "set/tables/points.parquet"
    points = dataset.load(table.parent)["points"]
    layout = points.filter(pl.col("point_id") == OTHER).select(dataset.SETTINGS).drop(dataset.ASIDE)
    repeats = points.join(layout, on=layout.columns, how="semi", nulls_equal=True)["point_id"].to_list()
    spoilt = pl.col("point_id").is_in([ONE, next(name for name in repeats if name != OTHER)])
    points.with_columns(disturbed_reason=pl.when(spoilt).then(pl.lit("steal"))).write_parquet(table)
    assert cli.main(["compare", *names, "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert before["disturbed"] == [None, None] and after["disturbed"] == ["steal", None]
    assert after["starts"] == [before["starts"][0], before["starts"][1] - 1]
    assert before["verdict"] == "slower" and after["verdict"] == "not known: something else disturbed a run"
    assert cli.main(["compare", *names]) == 0
    shown = capsys.readouterr().out
    assert "A was disturbed: steal" in shown and "B was disturbed" not in shown


def test_a_run_that_failed_is_neither_faster_nor_slower(capsys):
    """One of the data set's, whose remedy stalled after 20 steps that took less time."""
    names = [str(DATA / "points" / name) for name in ("c640f6ce3763", "4bf9789a72e2")]
    assert cli.main(["compare", *names, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "not known: a run did not end well" and found["failed"] == [None, "stalled"]
    assert cli.main(["compare", *names]) == 0
    assert "B did not end well: stalled" in capsys.readouterr().out
    assert cli.main(["diagnose", names[1]]) == 0
    assert "the run did not end well: stalled; what follows is of the steps before" in capsys.readouterr().out


def test_a_folder_with_points_alone_says_what_to_run(capsys, tmp_path):
    """As `wrap` leaves one."""
    (tmp_path / "points/a").mkdir(parents=True)
    (tmp_path / "points/a/record.json").write_text("{}")
    assert cli.main(["diagnose", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"name one of its points, such as {tmp_path}/points/a, or run the sweep with snakemake" in said


def test_nothing_to_compare_is_one_line_that_names_it(capsys, tmp_path):
    (tmp_path / "point.json").write_text("{}")
    assert cli.main(["compare", str(DATA / "points" / ONE), str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"nightsweep compare: {tmp_path}: has no step to compare (")
    trace = str(ROOT / "tests/data/kineto-h200-ddp-r0.json.gz")
    for pair in ([trace, str(DATA / "points" / ONE)], [str(DATA / "points" / ONE), trace]):
        assert cli.main(["compare", *pair]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{ONE}: has no step to compare with those of {trace}: its steps are timed ones" in line


def test_the_results_of_a_sweep_are_no_run(capsys, tmp_path):
    (tmp_path / "points/a").mkdir(parents=True)
    for name in ("points/a/record.json", "sweep.json"):
        (tmp_path / name).write_text("{}")
    assert cli.main(["compare", str(tmp_path), str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"{tmp_path}: has many runs; one of its points was expected ({tmp_path}/points/ID)")


def test_a_rank_without_steps_does_not_halve_the_batch():
    point = complete({**IMAGE, "ranks_per_node": 2, "strategy": "ddp"})
    whole = Evidence(steps=pl.concat([timed(10.0), timed(10.0).with_columns(rank=1)]), point=point)
    found = comparison.compare_runs([whole], [Evidence(steps=timed(10.0), point=point)])
    assert found.of == "step" and found.verdict == "no difference beyond noise"


@pytest.mark.parametrize("change", [{"workload": "audio", "model": "whisper"}, {"learning_rate": "fast"}])
def test_a_point_of_another_version_is_diagnosed_and_compared_and_spoils_no_other(capsys, tmp_path, change):
    folder, other = (shutil.copytree(ROOT / "tests/data/h200-2node/ddp", tmp_path / name) for name in "ab")
    record = json.loads((folder / "record.json").read_text())
    (folder / "record.json").write_text(json.dumps(record | {"settings": record["settings"] | change}))
    for pair in ([folder, other], [other, folder]):
        assert cli.main(["compare", *map(str, pair)]) == 0
    assert cli.main(["diagnose", str(folder)]) == 0
    assert "mean of the timed steps" in capsys.readouterr().out


def test_steps_whose_time_is_not_known_do_not_count():
    unknown = Evidence(steps=timed(10.0).with_columns(step_ms=pl.lit(None, pl.Float64)))
    some = Evidence(steps=timed(10.0).with_columns(step_ms=pl.when(pl.col("step") < 20).then("step_ms")))
    found = comparison.compare_runs([run(10.0), unknown], [some])
    assert found.starts == (1, 1) and found.steps == (30, 20) and found.step.by == pytest.approx(0, abs=0.1)


def test_steps_that_took_no_time_are_none(capsys, tmp_path):
    folder = shutil.copytree(ROOT / "tests/data/h200-2node/ddp", tmp_path / "a")
    for file in (folder / "timed").glob("steps-*.jsonl"):
        lines = [json.loads(line) | {"device_ns": 0} for line in file.read_text().splitlines()]
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert cli.main(["compare", str(folder), str(folder)]) == 2
    assert "has no step to compare" in capsys.readouterr().err
    assert cli.main(["diagnose", str(folder)]) == 1
    assert "no step could be timed" in capsys.readouterr().out
