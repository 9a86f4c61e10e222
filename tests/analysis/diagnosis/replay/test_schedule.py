"""Runs and stretches give the times of all calls and all work that looking at each of them alone gives."""

import dataclasses

import numpy as np
import polars as pl
import pytest

from nightsweep.analysis.diagnosis.evidence import sources
from nightsweep.analysis.diagnosis.replay import changes, edit, rank_changes
from nightsweep.analysis.diagnosis.replay.build import build
from nightsweep.analysis.diagnosis.replay.schedule import Schedule
from nightsweep.analysis.diagnosis.replay.times import replay
from tests.analysis.diagnosis.replay.plain_replay import plain_replay
from tests.labelled import kept

CHANGES = {
    "nothing": lambda graph: graph,
    "no tracer": lambda graph: changes.without_tracer(graph, 3000),
    "no launches": changes.without_launches,
    "no waits": changes.without_close_waits,
    "no communication": changes.without_communication,
    "even devices": rank_changes.with_device_of_others,
    "all": edit.compose(changes.without_loading, changes.without_waits, changes.without_launches),
}


def graph_of(name, folder):
    """One of the kept runs on two GPUs."""
    lanes = sources.from_folder(kept.unpacked(name, folder)).lanes
    return build({lane.rank: lane.events for lane in lanes}, pl.concat([lane.windows for lane in lanes]))


@pytest.fixture(scope="module", params=["launch_bound_fsdp2", "straggler_loader"])
def graph(request, tmp_path_factory):
    return graph_of(request.param, tmp_path_factory.mktemp("run"))


def assert_same(graph):
    fast, plain = replay(graph), plain_replay(graph)
    for field in dataclasses.fields(plain):
        assert np.array_equal(getattr(fast, field.name), getattr(plain, field.name)), field.name


@pytest.mark.parametrize("name", CHANGES)
def test_all_times_are_those_of_a_plain_replay(graph, name):
    plain = Schedule.of(graph)
    changed = CHANGES[name](graph)
    assert_same(changed)
    assert Schedule.of(changed) is plain


def test_far_fewer_pieces_are_looked_at_than_there_are(graph):
    assert 4 * len(Schedule.of(graph).kind) < len(graph.calls.start) + len(graph.work.start)


def test_of_work_that_begins_before_its_call_the_order_is_found_anew(graph):
    """Clocks of host and device may differ by more than a launch takes."""
    early = dataclasses.replace(graph.work, start=graph.work.start - 50_000)
    skewed = dataclasses.replace(graph, work=early, kept={})
    without = changes.without_waits(skewed)
    assert Schedule.of(skewed) is not Schedule.of(without)
    alone = replay(dataclasses.replace(without, kept={}))
    assert (replay(without).work_end == alone.work_end).all() and (replay(without).call_end == alone.call_end).all()


def test_more_work_of_a_stream_may_begin_before_a_collective_ends(graph):
    """Then what follows is not added up: the collective's end still changes."""
    lane = graph.work.lane.copy()
    lane[graph.work.rank == graph.work.rank[0]] = lane[0]  # all of a rank's streams as one
    mixed = dataclasses.replace(graph, work=dataclasses.replace(graph.work, lane=lane), kept={})
    assert_same(mixed)
