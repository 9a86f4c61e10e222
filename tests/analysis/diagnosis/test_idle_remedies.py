"""Remedies of which nothing can be measured: no step has a time, or nothing in a script answered to their switches."""

import polars as pl
import pytest

from nightsweep.analysis.diagnosis.remedies import trials
from nightsweep.analysis.figures.remedies import choose_trials
from nightsweep.analysis.ingest.point_tables import as_table
from nightsweep.analysis.report import causes
from nightsweep.analysis.sweep import dataset
from nightsweep.jobs.hook import outcome, switches
from tests.analysis.diagnosis.test_remedies import tables, timed, trial

IDLE = [switches._idle(name) for name in ("pin_memory", "non_blocking")]


@pytest.mark.parametrize(
    ("notes", "status", "verdict"),
    [
        (IDLE, "ok", "no_effect"),
        (IDLE[:1], "ok", "helped"),
        ([], "ok", "helped"),
        (IDLE, "failed", "failed"),
    ],
)
def test_what_was_measured_of_them_is_no_gain(notes, status, verdict):
    rows = [
        {"point_id": name, "workload": "command", "status": state, "notes": "; ".join(own) or None}
        for name, state, own in (("a", "ok", []), ("b", status, notes))
    ]
    steps = pl.concat([timed(10.0, point_id="a"), timed(1.0, 1, point_id="b")])
    (found,) = trials.gains(
        [trial("a", "b", pin_memory=True, non_blocking=True)], as_table("points", pl.DataFrame(rows)), steps
    )
    assert found.verdict == verdict


def test_switches_that_are_seen_at_the_end_say_so_likewise(monkeypatch):
    """What a script sets otherwise has no effect, either."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings = {"cpu_threads": 2}
    (note,) = outcome.without_effect(type("Of", (), {"settings": settings}))
    assert trials._is_idle(settings, note) and not trials._is_idle({"compile": "default"}, note)


@pytest.mark.parametrize(("verdict", "counts"), [("helped", 1), ("no_effect", 0)])
def test_they_are_neither_shown_nor_judged_as_predictions(verdict, counts):
    known = tables(("c", 0.3, verdict))
    timeline = as_table("timeline", pl.DataFrame([{"point_id": i} for i in "ac"]))
    found = dataset.Tables({**known.frames, "timeline": timeline})
    assert causes.predictions(found) == (0, counts, 0) and len(choose_trials(found)) == counts


@pytest.mark.parametrize(("unknown", "verdict"), [("a", "not_run"), ("b", "failed")])
def test_steps_without_a_time_are_none(unknown, verdict):
    points = as_table("points", pl.DataFrame([{"point_id": i, "status": "ok"} for i in "ab"]))
    known = pl.when(pl.col("point_id") != unknown).then("step_ms")
    steps = pl.concat([timed(10.0, point_id=i) for i in "ab"]).with_columns(step_ms=known)
    (found,) = trials.gains([trial("a", "b", loader_workers=1)], points, steps)
    assert (found.verdict, found.value) == (verdict, None)
