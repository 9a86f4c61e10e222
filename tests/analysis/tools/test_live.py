"""`nightsweep watch`: what is read of a running sweep, and how little is read of it."""

import json
import os
import re
import time
from pathlib import Path

import pytest

from nightsweep.analysis.tools.cli import main
from nightsweep.analysis.tools.watch import running as live_look
from nightsweep.analysis.tools.watch import state as live
from nightsweep.analysis.tools.watch.state import Reader
from nightsweep.jobs.record.input_error import InputError
from tests.analysis.tools.live_folders import (
    aged,
    beats,
    event,
    freeze,
    gpu,
    live_file,
    make_sweep,
    only,
    record,
    step,
    text,
)
from tests.effort import effort

ROOT = Path(__file__).parents[3]


def test_states_of_points(tmp_path):
    queued, made, running, ok, failed, cancelled, torn = make_sweep(tmp_path, 7)
    made.mkdir(parents=True)  # as Snakemake does before the job starts
    beats(running, "model")
    record(ok)
    record(failed, "failed")
    record(cancelled, "cancelled")
    aged(torn / "record.json", "{")
    state = Reader(tmp_path).read()
    (sweep,) = state.sweeps
    assert (sweep.name, sweep.points, sweep.done, sweep.failed, sweep.running, sweep.left) == ("s", 7, 4, 3, 1, 3)
    assert [point.point_id for point in sweep.running_points] == [running.name]
    assert not state.finished
    for point in (queued, made, running):
        record(point)
    assert Reader(tmp_path).read().finished


def test_time_left_is_by_the_points_that_ended_since_the_driver_began(tmp_path, monkeypatch):
    before, one, two, running, _ = make_sweep(tmp_path, 5)
    for point, age in ((before, 5000), (one, 60), (two, 30)):
        record(point)
        os.utime(point, (time.time() - age,) * 2)
    aged(tmp_path / "s/.driver", "", 400)
    assert Reader(tmp_path).read().sweeps[0].left_s is None  # nothing runs
    beats(running, "model")
    freeze(monkeypatch)
    assert Reader(tmp_path).read().sweeps[0].left_s == pytest.approx(400, abs=5)
    assert text(tmp_path)[0] == "s: 3/5 points done, 2 left (1 running), about 7 min to go"
    (tmp_path / "s/.driver").unlink()
    assert Reader(tmp_path).read().sweeps[0].left_s is None


def test_all_sweeps_or_one(tmp_path):
    make_sweep(tmp_path, 1, "a")
    (running,) = make_sweep(tmp_path, 1, "b")
    beats(running, "start")
    assert [sweep.name for sweep in Reader(tmp_path).read().sweeps] == ["a", "b"]
    assert [sweep.name for sweep in Reader(tmp_path / "b").read().sweeps] == ["b"]
    assert text(tmp_path)[0].startswith("b: ")  # what runs comes first


def test_the_slowest_rank_and_the_median_of_steps(tmp_path):
    (point,) = make_sweep(tmp_path, 1)
    beats(point, step(17, 800.0), step(16, 900.0), step(18, 100.0), step(17, None))
    found = only(tmp_path)
    assert (found.look, found.attempt, found.phase, found.step, found.steps) == ("timed", 1, "step", 16, 25)
    assert found.step_ms == 800.0
    assert text(tmp_path)[1].split("  ")[1] == "000000000000 timed step 16/25"
    beats(point, step(17, 800.0), "model", "", look="timed.1")
    assert (only(tmp_path).phase, only(tmp_path).step) == ("model", None)


def test_a_heartbeat_of_one_line_and_the_highest_attempt(tmp_path):
    (point,) = make_sweep(tmp_path, 1)
    beats(point, "step 3", look="timed.2", age=500)
    beats(point, "step 6", look="traced.10")
    found = only(tmp_path)
    assert (found.look, found.attempt, found.step, found.steps, found.step_ms) == ("traced", 10, 6, 8, None)


@pytest.mark.parametrize("content", ["", "\n", "step 3\n{", 'step 3\n["x"]', 'step 3\n{"step_ms": "x", "steps": true}'])
def test_heartbeats_cut_in_half(tmp_path, content):
    (point,) = make_sweep(tmp_path, 1)
    aged(point / "timed.1/rank0.heartbeat", content)
    found = only(tmp_path)
    assert (found.step, found.step_ms) == (3 if content.startswith("step") else None, None)
    assert len(text(tmp_path)) == 2


def test_what_a_killed_launcher_left_is_silent(tmp_path):
    (point,) = make_sweep(tmp_path, 1)
    beats(point, "step 3", "step 4", age=600)
    assert only(tmp_path).silent
    assert "silent 10 min" in text(tmp_path)[1]
    assert 599 < only(tmp_path).age_s < 620
    record(point, age=590)
    assert Reader(tmp_path).read().finished


def test_an_old_record_does_not_hide_ranks_that_move(tmp_path):
    (point,) = make_sweep(tmp_path, 1)
    record(point, "failed", age=60)
    look = beats(point, "step 3", look="timed.2", age=30)
    assert only(tmp_path).attempt == 2
    for file in look.iterdir():
        os.utime(file, (time.time() - 90,) * 2)
    assert Reader(tmp_path).read().finished


def test_a_start_that_goes_on_to_traced_steps_moves_in_its_timed_folder(tmp_path):
    (point,) = make_sweep(tmp_path, 1, tracer="auto")
    beats(point, "step 26")
    (point / "traced.1").mkdir()
    found = only(tmp_path)
    assert (found.look, found.step, found.steps, found.silent) == ("timed", 26, 28, False)


def test_a_look_without_signs_of_life_yet(tmp_path):
    (point,) = make_sweep(tmp_path, 1)
    (point / "timed.1").mkdir(parents=True)
    assert (only(tmp_path).phase, only(tmp_path).silent, only(tmp_path).steps) == (None, False, 25)


def test_low_needs_a_threshold_and_fresh_numbers(tmp_path):
    (point,) = make_sweep(tmp_path, 1)
    look = beats(point, "steps")
    live_file(look, "n1", gpu(0, low_s=75.0), for_s=None)
    live_file(look, "n2", gpu(0, low_s=75.0), age=11)
    live_file(look, "n3", gpu(0, low_s=0.0), for_s=0.0)
    live_file(look, "n4", gpu(0, low_s=60.0))
    aged(look / "live-n5.json", '{"gpus": [{"gpu": 0')
    aged(look / ".live-n6.json.17", '{"gpus": [{"gpu": 0}]}')
    assert [(g.host, g.low, g.stale) for g in only(tmp_path).gpus] == [
        ("n1", False, False), ("n2", False, True), ("n3", False, False), ("n4", True, False),
    ]  # fmt: skip


def test_the_newest_events_of_all_hosts(tmp_path, monkeypatch):
    freeze(monkeypatch)
    (point,) = make_sweep(tmp_path, 1)
    look = beats(point, "steps")
    aged(look / "events-n1.jsonl", "".join(event(f"m{age}", age) for age in range(50_000, 0, -10)))
    aged(look / "events-n2.jsonl", "[]\n\n" + event("second", 15, "n2", None) + event("half", 1)[:-9])
    assert [e.message for e in only(tmp_path).events] == ["m10", "second", "m20"]
    assert "    15 s ago, n2: low_gpu: second" in text(tmp_path)


def test_nothing_to_watch(tmp_path, capsys):
    for folder, what in [(tmp_path / "no", "is no folder"), (tmp_path, "no sweep.json here or in a folder of it")]:
        assert main(["watch", str(folder), "--once"]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert said.err.startswith(f"nightsweep watch: {folder}: {what}; expected a results folder, or results/SWEEP")
    for content in ("", "[]", '{"points": 3}', '{"points": [{"point_id": "x"}]}', '{"points": [3]}', "[" * 9999):
        aged(tmp_path / "s/sweep.json", content)
        with pytest.raises(InputError, match=r"s/sweep\.json: (is no list of points|holds no PointList)"):
            Reader(tmp_path).read()


@pytest.fixture
def touched(monkeypatch):
    """Paths that are opened, asked for or listed."""
    seen = []
    for name in ("open", "stat", "iterdir"):
        real = getattr(Path, name)

        def noted(self, *args, real=real, **kwargs):
            seen.append(self)
            return real(self, *args, **kwargs)

        monkeypatch.setattr(Path, name, noted)
    return seen


def big_sweep(tmp_path):
    """1,000 points: 500 done, 3 that run, 497 that wait, half of them with a folder."""
    points = make_sweep(tmp_path, 1000)
    for number, point in enumerate(points[:750]):
        point.mkdir(parents=True)
        if number < 500:
            record(point, "failed" if number % 10 == 0 else "ok")
        elif number < 503:
            beats(point, *(step(number, 1.0) for _ in range(8)))
        os.utime(point, (time.time() - 100,) * 2)
    return points


def test_a_second_reading_touches_only_points_that_do_not_rest(tmp_path, touched, monkeypatch):
    points = big_sweep(tmp_path)
    assert effort(lambda: Reader(tmp_path).read(), 80) <= 80
    reader = Reader(tmp_path)
    first = reader.read()
    touched.clear()
    assert reader.read().sweeps[0].done == first.sweeps[0].done == 500
    places = [
        path.relative_to(tmp_path / "s/points").parts for path in touched if tmp_path / "s/points" in path.parents
    ]
    assert {place[0] for place in places if len(place) > 1} == {point.name for point in points[500:503]}
    assert len([place for place in places if len(place) == 1]) == 247 + 2 * 3  # one stat each, and a list of those
    assert not {place[0] for place in places} & {point.name for point in points[:500]}
    assert len(touched) < 247 + 3 * 12 + 10
    (points[7] / "record.json").rename(points[7] / "record.aside-1.json")
    beats(points[600], "start")
    assert (reader.read().sweeps[0].done, reader.read().sweeps[0].running) == (500, 4)
    now = time.time_ns()
    monkeypatch.setattr(live.time, "time_ns", lambda: now + int(61e9))
    touched.clear()
    assert reader.read().sweeps[0].done == 499
    assert not any(path.name == "record.json" for path in touched)


def test_what_begins_and_ends_is_seen_at_once(tmp_path):
    point, other = make_sweep(tmp_path, 2)
    reader = Reader(tmp_path)
    assert reader.read().sweeps[0].running == 0
    other.mkdir(parents=True)
    assert reader.read().sweeps[0].running == 0
    beats(point, "start")
    beats(other, "start")
    assert reader.read().sweeps[0].running == 2
    (point / "timed.1").rename(point / "timed")
    assert reader.read().sweeps[0].running == 1
    record(point)
    assert (reader.read().sweeps[0].done, reader.read().sweeps[0].left) == (1, 1)
    (tmp_path / "s/sweep.json").unlink()
    with pytest.raises(InputError):
        reader.read()


def test_a_new_list_of_points(tmp_path):
    reader = Reader(tmp_path / "s")
    make_sweep(tmp_path, 2)
    assert reader.read().sweeps[0].points == 2
    content = json.loads((tmp_path / "s/sweep.json").read_text())
    aged(tmp_path / "s/sweep.json", json.dumps(content | {"points": content["points"][:1]}), age=50)
    assert reader.read().sweeps[0].points == 1
    aged(tmp_path / "s/sweep.json", "{", age=40)
    assert reader.read().sweeps[0].points == 1


def test_points_of_rounds_of_remedies_are_watched_too(tmp_path):
    (point,) = make_sweep(tmp_path, 1)
    reader, folder = Reader(tmp_path / "s"), tmp_path / "s"
    record(point)
    assert reader.read().finished
    (settings,) = [each["settings"] for each in json.loads((folder / "sweep.json").read_text())["points"]]
    for number in (1, 2):
        (folder / "remedies").mkdir(exist_ok=True)
        added = [{"point_id": f"remedied{number}", "settings": settings | {"loader_workers": number}}]
        aged(folder / f"remedies/round{number}.json", json.dumps({"name": "s", "points": added}))
        assert (reader.read().sweeps[0].points, reader.read().sweeps[0].left) == (1 + number, number)
    beats(point.with_name("remedied2"), "model")
    (running,) = reader.read().sweeps[0].running_points
    assert running.point_id == "remedied2" and running.settings["loader_workers"] == 2


def test_phases_are_those_that_ranks_tell():
    """A rank that evaluates, or prepares data, was taken for the slowest, as if it had just been started."""
    sources = [(ROOT / f"jobs/rank/{name}.py").read_text() for name in ("worker", "loop", "epochs")]
    told = set(re.findall(r'\.beat\(f?"(\w+)', "".join(sources)))
    assert told | {"start", "step"} == set(live_look.PHASES)


def test_a_rank_that_evaluates_is_ahead_of_one_that_trains(tmp_path):
    (point,) = make_sweep(tmp_path, 1)
    for rank, said in enumerate(("evaluation of epoch 1", "step 7")):
        aged(point / f"timed.1/rank{rank}.heartbeat", f"{said}\n")
    assert (only(tmp_path).phase, only(tmp_path).step) == ("step", 7)
