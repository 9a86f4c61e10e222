"""Which ranks are traced, and what a sweep may ask of traces, samples and alerts."""

import dataclasses

import pytest

from nightsweep.jobs.point.check import reasons
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.sweep.sweep import SweepError, load
from tests.fakes.nsys import nano


@pytest.mark.parametrize(
    ("asked", "ranks"),
    [("all", [0, 1, 2, 3, 4, 5]), ("first-per-node", [0, 3]), ("4", [4]), ("5,0", [0, 5]), ("1,2,3", [1, 2, 3])],
)
def test_ranks_that_are_traced(asked, ranks):
    point = nano(nodes=2, ranks_per_node=3, trace_ranks=asked)
    assert point.traced_ranks() == ranks


@pytest.mark.parametrize(("ranks", "text"), [("1,3", []), ("4", ["rank 4 never comes: ranks go from 0 to 3"])])
def test_ranks_that_a_script_starts_itself_can_be_traced(ranks, text):
    """They were said never to come: the launcher starts one process a node."""
    shape = {"launcher": "none", "nodes": 2, "ranks_per_node": 2, "trace_ranks": ranks}
    point = complete({"workload": "command", "command": "train.py", **shape})
    assert [reason.text for reason in reasons(point)] == text
    assert point.traced_ranks() == [rank for rank in (1, 3) if not text]


@pytest.mark.parametrize(("nodes", "count"), [(1, 8), (2, 16), (3, 14), (64, 78)])
def test_ranks_that_are_traced_of_many_are_of_every_node_and_every_place_on_one(nodes, count):
    ranks = nano(nodes=nodes, ranks_per_node=8).traced_ranks()
    assert len(ranks) == len(set(ranks)) == count and ranks == sorted(ranks) and max(ranks) < 8 * nodes
    assert {rank // 8 for rank in ranks} == set(range(nodes)) and {rank % 8 for rank in ranks} == set(range(8))


BASE = "name: s\nbase: {workload: image, model: resnet50}\n"
BAD_RANKS = "is not auto, all, first-per-node or ranks with commas and without leading zeros (0,3)"
BROKEN = [
    (
        "include: [{ranks_per_node: 2, trace_ranks: '0,2'}]",
        "include[0].trace_ranks: rank 2 never comes: ranks go from 0 to 1 (1 point)",
    ),
    (
        "axes: {nodes: [1, 2], trace_ranks: [all, '1']}",
        "point(trace_ranks=1, nodes=1): rank 1 never comes: ranks go from 0 to 0 (1 point)",
    ),
    ("include: [{trace_ranks: some}]", f"include[0].trace_ranks: 'some' {BAD_RANKS}"),
    ("axes: {trace_ranks: [all, '0,']}", f"axes.trace_ranks[1]: '0,' {BAD_RANKS}"),
    ("axes: {trace_ranks: ['-1']}", f"axes.trace_ranks[0]: '-1' {BAD_RANKS}"),
    ("axes: {trace_ranks: ['01']}", f"axes.trace_ranks[0]: '01' {BAD_RANKS}"),
    ("include: [{trace_ranks: '0,00'}]", f"include[0].trace_ranks: '0,00' {BAD_RANKS}"),
    ("axes: {trace_ranks: ['\u0661']}", f"axes.trace_ranks[0]: '\u0661' {BAD_RANKS}"),
    ('axes: {trace_ranks: ["all\\n"]}', f"axes.trace_ranks[0]: 'all\\n' {BAD_RANKS}"),
    (
        "axes: {ranks_per_node: [2], trace_ranks: [all, '1,0,1']}",
        "axes.trace_ranks[1]: rank 1 is given more than once in 1,0,1 (1 point)",
    ),
    ("axes: {trace_ranks: [1]}", "axes.trace_ranks[0]: 1 is not a text"),
    ("axes: {trace_preset: [heavy]}", "axes.trace_preset[0]: 'heavy' is not one of light, deep"),
    (
        "include: [{trace_ranks: '0', traced_steps: 0}]",
        "include[0].trace_ranks: trace_ranks 0 has no effect: traced_steps is 0 (1 point)",
    ),
    (
        "include: [{trace_preset: [light, deep], traced_steps: 0}]",
        "include[0].trace_preset[1]: trace_preset deep has no effect: traced_steps is 0 (1 point)",
    ),
    (
        "include: [{keep_report: false, traced_steps: 0}]",
        "include[0].keep_report: keep_report false has no effect: traced_steps is 0 (1 point)",
    ),
    (
        "axes: {nvml_hz: [10, 20], device: [auto, cpu]}",
        "point(nvml_hz=20, device=cpu): nvml_hz 20 has no effect: device is cpu (1 point)",
    ),
    ("axes: {nvml_hz: [50, 51]}", "axes.nvml_hz[1]: 51 is more than 50"),
    ("axes: {nvml_hz: [-1]}", "axes.nvml_hz[0]: -1 is less than 0"),
    ("axes: {cost_pairs: [-1]}", "axes.cost_pairs[0]: -1 is less than 0"),
    ("alert: {below_percent: 101}", "alert.below_percent: 101 is more than 100"),
    ("alert: {below_percent: -1}", "alert.below_percent: -1 is less than 0"),
    ("alert: {for_s: 0}", "alert.for_s: 0 is less than 1"),
    ("alert: {for_s: a minute}", "alert.for_s: 'a minute' is not a finite number"),
    ("alert: {command: ''}", "alert.command: is empty"),
    ("alert: {command: [mail, me]}", "alert.command: ['mail', 'me'] is not a text"),
    ("alert: {below: 5}", "alert.below: unknown key (there are below_percent, for_s, command)"),
    ("alert: {for: 5}", "alert.for: unknown key (did you mean 'for_s'?)"),
    ("alert: 5", "alert: 5 is not a map"),
    ("presets: {night: {alert: {for_s: 0}}}", "presets.night.alert.for_s: 0 is less than 1"),
]


def sweep(tmp_path, text, preset=None):
    file = tmp_path / "sweep.yaml"
    file.write_text(BASE + text)
    return load(file, preset)


@pytest.mark.parametrize(("text", "expected"), BROKEN)
def test_a_broken_file_gives_one_line(tmp_path, text, expected):
    with pytest.raises(SweepError) as caught:
        sweep(tmp_path, text)
    assert list(caught.value.errors) == [expected]


def test_every_setting_that_a_point_without_trace_does_not_use_is_told(tmp_path):
    with pytest.raises(SweepError) as caught:
        sweep(
            tmp_path,
            "include: [{traced_steps: 0, tracer: kineto, trace_ranks: '0', trace_preset: deep, keep_report: false}]",
        )
    given = {"tracer": "kineto", "trace_ranks": "0", "trace_preset": "deep", "keep_report": "false"}
    assert list(caught.value.errors) == [
        f"include[0].{name}: {name} {value} has no effect: traced_steps is 0 (1 point)" for name, value in given.items()
    ]


def test_trace_settings_and_alerts_that_are_right_pass(tmp_path):
    text = "axes: {trace_ranks: [all, first-per-node, '0,1'], nvml_hz: [0, 10, 50]}\n"
    text += "alert: {below_percent: 20}\npresets: {night: {alert: {for_s: 5}, base: {ranks_per_node: 2}}}\n"
    found = sweep(tmp_path, text, "night")
    assert len(found.points) == 9
    assert dataclasses.astuple(found.alert) == (20, 5, None)
