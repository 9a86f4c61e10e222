"""What the diagnosis says of the labelled set: real runs on H200s whose largest loss is known (tests/labelled)."""

import multiprocessing
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from nightsweep.analysis.diagnosis import verdict
from nightsweep.analysis.diagnosis.evidence import sources
from nightsweep.analysis.diagnosis.replay.build import build
from nightsweep.analysis.diagnosis.replay.periods import periods
from nightsweep.analysis.diagnosis.replay.times import replay
from nightsweep.analysis.diagnosis.thresholds import HEALTHY, NOISE
from nightsweep.analysis.ingest import point_tables
from nightsweep.analysis.tables.part_names import GROUP, PARTS
from tests.labelled import kept
from tests.labelled.runs import load

NAMES = kept.names()
LABELS = {name: kept.label(name) for name in NAMES}
ILL = [name for name in NAMES if LABELS[name]["kinds"]]
MISSING = ("missing_trace", "missing_counters")
MISSED = {
    "healthy_loader": "host_sync is found, 11 %: DDP's waits while it times itself; the label has launch_bound",
    "host_sync_llama": "host_sync is found, as was intended: without a tracer the host is ahead, and the read waits",
    "loader_wait_storage": "tensor_cores_unused is found, but 7 %: then the host launches no faster",
    "straggler_loader": "loader_wait of rank 1 is found, 5 %, behind 10 % of fp32 products: no rank's device is slower",
}
"""Where the diagnosis is not what the label says. Labels were not changed for it."""


def diagnosed(name):
    """In a process of its own: what `nightsweep diagnose --json` prints; and the time of each group of parts in each
    step of each rank, ns: as the diagnosis has it, and as the table `breakdown` has it."""
    with tempfile.TemporaryDirectory() as folder:
        point, tables = kept.unpacked(name, Path(folder)), Path(folder) / "tables"
        made = point_tables.ingest(point, tables)
        point_tables.write(made, tables)
        e = sources.from_point(point, tables)
        seen = Counter()
        for lane in e.lanes:
            for part in PARTS:
                for step, length in zip(lane.steps["step"], lane.lengths(lane.sets[part]).tolist(), strict=True):
                    seen[lane.rank, step, GROUP[part]] += length
        shown = {row[:3]: row[3] for row in made["breakdown"].select("rank", "step", "part", "duration_ns").iter_rows()}
        replayed = {}
        if e.lanes:
            graph = build({lane.rank: lane.events for lane in e.lanes}, pl.concat([lane.windows for lane in e.lanes]))
            again = periods(graph, replay(graph))
            replayed = {
                lane.rank: (own.tolist(), lane.periods.tolist()) for own, lane in zip(again, e.lanes, strict=True)
            }
        return verdict.judge(e).as_json() | {"seen": dict(seen), "shown": shown, "replayed": replayed}


@pytest.fixture(scope="module")
def found():
    """The diagnosis of every run."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        return dict(zip(NAMES, pool.map(diagnosed, NAMES), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_the_table_and_the_diagnosis_of_a_trace_agree_to_the_nanosecond(found, name):
    assert found[name]["seen"] == found[name]["shown"]
    assert bool(found[name]["shown"]) == bool(found[name]["steps"])
    summed = sum(found[name]["shown"].values()) / 1e6
    counted = len({(rank, step) for rank, step, _ in found[name]["shown"]})
    if found[name]["steps"] * len(found[name]["ranks"]) == counted:  # else ranks have steps that others have not
        assert summed == pytest.approx((found[name]["step_ms"] or 0) * counted)


def material(one):
    return [cause for cause in one["causes"] if cause["share"] >= NOISE.value]


@pytest.mark.parametrize("name", ILL)
def test_the_largest_cause_is_what_was_put_there(found, name):
    kinds, causes = LABELS[name]["kinds"], material(found[name])
    if {*kinds} <= {*MISSING}:
        assert {*kinds} <= {cause["kind"] for cause in found[name]["causes"]}
        return
    named = {cause["kind"] for cause in causes[: len(kinds)]} == {*kinds}
    right = named and found[name]["healthy"] is False and LABELS[name]["rank"] in (None, causes[0]["rank"])
    assert right == (name not in MISSED)


@pytest.mark.parametrize("name", NAMES)
def test_a_replay_without_a_change_gives_every_step_to_the_nanosecond(found, name):
    assert all(again == measured for again, measured in found[name]["replayed"].values())
    assert bool(found[name]["replayed"]) == bool(found[name]["steps"])


def test_little_of_the_longest_paths_is_explained_by_nothing(found):
    shares = sorted(one["unexplained"] for one in found.values() if one["unexplained"] is not None)
    assert len(shares) == len(NAMES) - 1 and shares[len(shares) // 2] < 0.02 and shares[-1] < 0.3


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ILL])
def test_of_a_healthy_run_no_cause_has_a_tenth(found, name):
    assert found[name]["healthy"] is True
    assert all(cause["share"] < HEALTHY.value for cause in found[name]["causes"])


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found_that_cannot_be(found, name):
    assert not {cause["kind"] for cause in found[name]["causes"]} & {*LABELS[name]["impossible"]}


@pytest.mark.parametrize("half", ["tune", "report"])
def test_both_halves_have_healthy_runs_and_several_ranks(found, half):
    own = [name for name in NAMES if LABELS[name]["half"] == half]
    assert any(found[name]["healthy"] for name in own)
    assert any(len(found[name]["ranks"]) == 2 for name in own)


def test_labels_are_the_list_s_but_for_reasons():
    """A label that is not the list's has its reason; a run that the list no longer has, too."""
    listed = {run.name: run for run in load()}
    for name in NAMES:
        if "corrected" not in LABELS[name]:
            assert (listed[name].kinds, listed[name].half) == (LABELS[name]["kinds"], LABELS[name]["half"])
        else:
            assert len(LABELS[name]["corrected"]) > 40 and LABELS[name]["intended"] != LABELS[name]["kinds"]
