"""The loop: a diagnosis' remedies are run as points like any other, once, and the tables say what they gain."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from snakemake_executor_plugin_submitit.hook import Loss

from nightsweep.analysis.diagnosis import point_diagnosis
from nightsweep.analysis.diagnosis.remedies import round, trials
from nightsweep.analysis.diagnosis.remedies.trials import Gain, Trial
from nightsweep.analysis.ingest.derived import OF_POINT, Chunk, Made
from nightsweep.analysis.ingest.point_tables import as_table, ingest, write
from nightsweep.analysis.report import causes as why
from nightsweep.analysis.report import sweep_page as report
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.sweep.starts import Noise
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.slurm.point_jobs import PointJobs
from nightsweep.jobs.sweep import rounds

ROOT = Path(__file__).parents[3]
NOISE = Noise(0.01, 10, "made up")
IMAGE = {"workload": "image", "model": "mobilenet_v2", "device": "cpu"}


def cause(kind, share, **remedy):
    edges = {"share_low": share / 2, "share_high": share}
    return {"cause": "data_loading", "kind": kind, "share": share, "remedy": remedy, **edges}


def timed(mean, seed=0, count=30, samples=4, point_id="p"):
    """Timed steps of about so many ms."""
    steps = np.random.default_rng(seed).normal(mean, mean / 100, count)
    columns = {"point_id": point_id, "rank": 0, "step": range(count), "phase": "timed"}
    return as_table("steps", pl.DataFrame({**columns, "step_ms": steps, "samples": samples}))


def trial(point, other, kind="loader_wait", **remedy):
    return Trial(point, other, "data_loading", kind, remedy, 0.2, 0.1, 0.2)


def test_the_largest_cause_that_a_setting_mends_goes_first():
    point = complete(IMAGE)
    causes = [
        cause("straggler", 0.5),
        cause("loader_wait", 0.2, loader_workers=1),
        cause("small_batch", 0.1, micro_batch=64),
    ]
    (due,) = trials.due_trials({point.id: point}, {point.id}, {point.id: causes}, [])
    assert due.kind == "loader_wait" and due.share_low == 0.1
    assert due.remedied_id == complete({**IMAGE, "loader_workers": 1}).id


def test_nothing_is_due_below_noise_or_of_a_failed_point():
    point = complete(IMAGE)
    small = {point.id: [cause("loader_wait", 0.009, loader_workers=1)]}
    assert trials.due_trials({point.id: point}, {point.id}, small, []) == []
    large = {point.id: [cause("loader_wait", 0.5, loader_workers=1)]}
    assert trials.due_trials({point.id: point}, set(), large, []) == []


def test_rounds_go_on_from_what_helped_and_end():
    """A remedy that helped is kept and the next cause is one of the remedied point; else it is the point's next one."""
    first, second = complete(IMAGE), complete({**IMAGE, "loader_workers": 1})
    third = complete({**IMAGE, "loader_workers": 1, "micro_batch": 64})
    own, ok = {first.id: first}, {first.id, second.id, third.id}
    causes = {
        first.id: [cause("loader_wait", 0.2, loader_workers=1), cause("small_batch", 0.1, micro_batch=64)],
        second.id: [cause("small_batch", 0.1, micro_batch=64)],
        third.id: [],
    }
    one = trial(first.id, second.id, loader_workers=1)
    (due,) = trials.due_trials(own, ok, causes, [(one, "helped")])
    assert (due.point_id, due.remedied_id) == (second.id, third.id)
    (due,) = trials.due_trials(own, ok, causes, [(one, "within_noise")])
    assert (due.point_id, due.remedied_id) == (first.id, complete({**IMAGE, "micro_batch": 64}).id)
    two = trial(second.id, third.id, "small_batch", micro_batch=64)
    assert trials.due_trials(own, ok, causes, [(one, "helped"), (two, "did_not_help")]) == []
    assert trials.due_trials(own, ok, causes, [(one, "helped"), (two, "helped")]) == []


@pytest.mark.parametrize(
    ("after", "verdict", "value"), [(8.0, "helped", 0.2), (10.04, "within_noise", 0.0), (12.0, "did_not_help", -0.2)]
)
def test_what_a_remedy_gave_back(after, verdict, value):
    found = trials.gain(timed(10.0), timed(after, 1), ("ok", "ok"), NOISE)
    assert found.verdict == verdict and found.value == pytest.approx(value, abs=0.01)
    assert found.low < found.value < found.high and found.before_ms == pytest.approx(2.5, rel=0.01)


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, "helped"), (1.03, "helped"), (1.3, "losses_changed"), (None, "helped")]
)
def test_a_switch_that_changes_a_scripts_losses_is_no_remedy(factor, verdict):
    """None: the script's losses are not known."""
    before, after = (timed(10.0).with_columns(loss=2 + pl.col("step") / 100), timed(8.0, 1))
    loss = pl.lit(None, pl.Float64) if factor is None else factor * (2 + pl.col("step") / 100)
    after = after.with_columns(loss=loss)
    assert trials.gain(before, after, ("ok", "ok"), NOISE, script=True).verdict == verdict
    assert trials.gain(before, after, ("ok", "ok"), NOISE).verdict == "helped"


def test_a_larger_batch_is_judged_by_the_sample():
    found = trials.gain(timed(10.0), timed(15.0, 1, samples=8), ("ok", "ok"), NOISE)
    assert found.verdict == "helped" and found.value == pytest.approx(0.25, abs=0.01)


def test_a_remedy_without_steps_is_no_success():
    assert trials.gain(timed(10.0), timed(9.0).clear(), ("ok", "failed"), NOISE) == Gain("failed")
    assert trials.gain(timed(10.0), timed(9.0).clear(), ("ok", "not_run"), NOISE) == Gain("not_run")


def results_of(folder, settings, causes):
    """Results of a sweep whose points are measured and diagnosed."""
    points = [complete(one) for one in settings]
    listed = [{"point_id": point.id, "settings": point.settings()} for point in points]
    folder.mkdir(exist_ok=True)
    (folder / "sweep.json").write_text(json.dumps({"name": "loop", "alert": {}, "points": listed}))
    made = []
    for point in points:
        row = pl.DataFrame({"point_id": [point.id], "status": "ok"})
        own = {name: as_table(name, None) for name in OF_POINT}
        own |= {"points": as_table("points", row), "steps": as_table("steps", timed(10.0, point_id=point.id))}
        made.append(Made(point.id, 0, 0, own, None, json.dumps({"causes": causes})))
    ids = [point.id for point in points]
    Chunk(folder / "derived/points-0000").save(ids, made)
    return ids


def test_a_remedied_point_of_the_sweep_is_tried_but_not_run_again(tmp_path):
    """Two points whose remedy is the same third one, which the sweep has, and a fourth with a new one."""
    settings = [
        {**IMAGE, "prefetch_factor": 3, "loader_workers": 2},
        {**IMAGE, "prefetch_factor": 3, "loader_workers": 4},
        {**IMAGE, "prefetch_factor": 3, "loader_workers": 1},
        {**IMAGE, "loader_workers": 2},
    ]
    ids = results_of(tmp_path / "loop", settings, [cause("loader_wait", 0.3, loader_workers=1)])
    assert round.main([str(tmp_path / "loop"), "--round", "1"]) == 0
    planned = json.loads(rounds.file(tmp_path / "loop", "remedies", 1).read_text())
    assert [(t["point_id"], t["remedied_id"]) for t in planned["trials"][:2]] == [(ids[0], ids[2]), (ids[1], ids[2])]
    new = complete({**IMAGE, "loader_workers": 1})
    assert [point["point_id"] for point in planned["points"]] == [new.id]
    assert rounds.job_of(tmp_path / "loop", new.id).settings["loader_workers"] == 1
    assert rounds.job_of(tmp_path / "loop", ids[0]).sweep == "loop"


def test_a_lost_point_of_a_round_gets_its_record(tmp_path):
    """What the executor writes where the node of a remedied point died."""
    (own,) = results_of(tmp_path / "loop", [IMAGE], [cause("loader_wait", 0.3, loader_workers=1)])
    round.main([str(tmp_path / "loop"), "--round", "1"])
    new = rounds.added_ids(tmp_path / "loop")[0]
    record = tmp_path / f"loop/points/{new}/record.json"

    class Job:
        output, params = [record], type("Params", (), {"folders": [str(record.parent)]})

        def is_group(self):
            return False

    assert PointJobs().record_loss(Job(), Loss("node_failure", "node 3 died"), 1, None)
    told = json.loads(record.read_text())
    assert told["status"] == "failed" and told["settings"]["loader_workers"] == 1 and own != new


def test_a_broken_trace_leaves_the_timed_look(tmp_path, capsys):
    (tmp_path / "traced").mkdir()
    (tmp_path / "traced/trace-r0.sqlite").write_text("no database")
    (tmp_path / "record.json").write_text(json.dumps({"status": "ok", "settings": complete(IMAGE).settings()}))
    derived = tmp_path / "derived"
    write(ingest(tmp_path, derived), derived)
    assert "not an Nsight Systems export" in capsys.readouterr().err
    found = point_diagnosis.diagnose_point(tmp_path, derived).as_json()
    (missing,) = [c for c in found["causes"] if c["kind"] == "missing_trace"]
    assert "not an Nsight Systems export" in missing["evidence"][0]["value"]
    (derived / "trace/windows.parquet").write_text("no table")
    found = point_diagnosis.diagnose_point(tmp_path, derived).as_json()
    assert "missing_trace" in {c["kind"] for c in found["causes"]}
    assert "diagnosed without its trace" in capsys.readouterr().err
    (tmp_path / "record.json").write_text(json.dumps({"status": "failed"}))
    assert point_diagnosis.diagnose_point(tmp_path, derived).as_json()["causes"] == []


def test_a_trace_of_ranks_on_cpus_says_nothing_of_a_gpu(tmp_path):
    (tmp_path / "traced").mkdir()
    (tmp_path / "traced/trace-r0.json.gz").symlink_to(ROOT / "tests/data/kineto-cpu-r0.json.gz")
    (tmp_path / "record.json").write_text(json.dumps({"status": "ok", "settings": complete(IMAGE).settings()}))
    derived = tmp_path / "derived"
    write(ingest(tmp_path, derived), derived)
    found = point_diagnosis.diagnose_point(tmp_path, derived).as_json()
    assert found["steps"] == 2 and sum(found["parts"].values()) == pytest.approx(found["step_ms"])
    assert found["healthy"] is None and "no activity of a GPU" in json.dumps(found["causes"])


def tables(*tried, status="ok"):
    """A sweep of two points, one with a cause, and what was tried on it: (id, gain, verdict)."""
    points = [{"point_id": i, "sweep": "s", "status": "ok", **complete(IMAGE).settings()} for i in "ab"]
    points += [{**points[0], "point_id": i, "round": 1, "loader_workers": 1, "status": status} for i, _, _ in tried]
    ill = {"point_id": "a", "place": 1, **cause("loader_wait", 0.4), "remedy": '{"loader_workers": 1}', "gpu_s": 3600.0}
    rows = {
        "points": points,
        "diagnoses": [
            {**ill, "advice": "more workers", "rank": None},
            {**ill, "place": 2, "kind": "straggler", "cause": "communication", "share": 0.1, "remedy": "{}"},
            {**ill, "point_id": "b", "kind": "missing_counters", "share": 0.0, "remedy": "{}"},
        ],
        "remedies": [
            {"point_id": "a", "remedied_id": i, "round": 1, "kind": "loader_wait", "remedy": '{"loader_workers": 1}'}
            | {"predicted": 0.4, "gain": gain, "verdict": verdict, "gpu_s": 3600.0, "before_ms": 2.0, "after_ms": 1.0}
            for i, gain, verdict in tried
        ],
    }
    return dataset.Tables({n: as_table(n, pl.DataFrame(r, infer_schema_length=None)) for n, r in rows.items() if r})


def test_the_report_has_what_was_tried_before_larger_shares_and_those_unseen_apart(tmp_path):
    known = tables(("c", 0.3, "helped"))
    own = known["diagnoses"].filter(pl.col("place") == 1).to_dicts()
    larger = {**own[0], "point_id": "b", "share": 0.9}
    unseen = {**own[1], "point_id": "c", "kind": "missing_trace"}
    both = dataset.Tables(
        {**known.frames, "diagnoses": pl.DataFrame([larger, own[0], unseen], infer_schema_length=None)}
    )
    lines, blind = why.lines(both)
    assert [row["point_id"] for row in lines] == ["a", "b"] and [row["point_id"] for row in blind] == ["c"]
    assert "1 point without a diagnosis" in report.render(both, tmp_path, [])


def test_points_of_which_nothing_is_known_lessen_no_share():
    """Beside an hour each of a and b: two of c, without a trace, and two of d, without one but half of it waiting."""
    known = tables()
    row = {**known["diagnoses"].row(0, named=True), "kind": "missing_trace", "share": 0.0, "gpu_s": 7200.0}
    more = [{**row, "point_id": i} for i in "cd"] + [
        {**row, "point_id": "d", "kind": "cpu_preprocessing", "share": 0.5}
    ]
    points = [known["points"].head(1).with_columns(point_id=pl.lit(i)) for i in "cd"]
    added = as_table("diagnoses", pl.DataFrame(more, infer_schema_length=None))
    both = {"points": pl.concat([known["points"], *points]), "diagnoses": pl.concat([known["diagnoses"], added])}
    shares = {row["kind"]: row["share"] for row in why.lost_hours(dataset.Tables(both))}
    assert shares == {"cpu_preprocessing": "25.0 %", "loader_wait": "10.0 %", "straggler": "2.5 %"}


def test_the_report_sums_up_causes_and_changes(tmp_path):
    shown = tables(("c", 0.3, "helped"))
    assert [(row["kind"], row["hours"], row["share"]) for row in why.lost_hours(shown)] == [
        ("loader_wait", "0.4", "20.0 %"),
        ("straggler", "0.1", "5.0 %"),
    ]
    (change,) = why.changes(shown)
    assert (change["change"], change["predicted"], change["gained"]) == ("1 loader worker", "0.4", "0.3")
    (ill, well), unseen = why.lines(shown)
    assert ill["gain"].startswith("30.0 %") and ill["verdict"] == "helped" and well["cause"].startswith("healthy")
    assert unseen == []
    page = report.render(shown, tmp_path, [])
    assert (
        "Rank-hours lost by cause" in page
        and "GPU-hours" not in page.partition('id="causes"')[2].split("</section>")[0]
    )
    assert "1 of 1 helped" in page and "added by remedies" in page and "image: mobilenet_v2" in page
    assert "First cause of each point" in page and "Largest" not in page  # by what it saves at least


def test_a_remedy_beside_which_something_else_ran_is_marked(tmp_path):
    """It counts, and `nightsweep compare` gives no verdict on its two points."""
    shown = tables(("c", 0.3, "helped"))
    points = shown["points"].with_columns(disturbed=pl.col("point_id") == "c")
    shown = dataset.Tables({**shown.frames, "points": points})
    said = "helped (something else disturbed a run)"
    ((row,), (ill, _)) = why.trials(shown), why.lines(shown)[0]
    assert (row["said"], ill["verdict"]) == (said, said)
    assert why.changes(shown)[0]["outcome"] == "1 of 1 helped, 1 disturbed"
    assert report.render(shown, tmp_path, []).count(said) == 3  # of all trials, of the first causes, its own page


def test_what_is_sure_to_save_comes_before_what_may_save_more():
    """Of 1,000 hours 5 % or nothing; of one hour half; of 100 hours 30 % or nothing."""
    shares = {"compile": (0.05, 0.005, 1000), "loader_workers": (0.6, 0.5, 1), "fused": (0.3, 0.0, 100)}
    known = tables()
    own = known["diagnoses"].to_dicts()[0]
    causes = [
        own | {"remedy": json.dumps({name: 1}), "share": share, "share_low": low, "gpu_s": hours * 3600.0}
        for name, (share, low, hours) in shares.items()
    ]
    frame = as_table("diagnoses", pl.DataFrame(causes, infer_schema_length=None))
    found = why.changes(dataset.Tables({**known.frames, "diagnoses": frame}))
    assert [next(iter(json.loads(row["remedy"]))) for row in found] == ["loader_workers", "compile", "fused"]
    assert [row["sure"] for row in found] == [True, False, False]
    assert not why.changes(tables(("c", 0.05, "within_noise")))[0]["sure"]


def test_a_remedy_that_did_not_help_is_said_to_have_not():
    (change,) = why.changes(tables(("c", -0.1, "did_not_help")))
    assert change["gained"] == "-0.1" and change["outcome"] == "0 of 1 helped"
    (row,) = why.trials(tables(("c", None, "failed"), status="failed"))
    assert row["said"] == "did not help: it failed" and row["measured"] == ""
    assert why.changes(tables())[0]["outcome"] == "not tried"
