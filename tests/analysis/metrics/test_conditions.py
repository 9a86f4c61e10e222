"""The conditions of a point's steps, and the rule that says whether something disturbed them."""

import polars as pl
import pytest

from nightsweep.analysis.metrics.points import conditions
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tables import column, points
from nightsweep.analysis.tables import telemetry as tables

S = 10**9
QUIET = {"other_cpu_percent": 0.5, "steal_percent": 0.0, "throttled_percent": 0.0, "foreign_processes": 0}


def frame(rows, columns):
    return column.conform(pl.DataFrame(rows), columns).collect()


def point(gpu=(), host=(), uuids=("u0",)):
    """A point with timed steps from 10 to 20 s, after one that settles; samples are (second, values)."""
    steps = [{"rank": 0, "step": s, "phase": "timed" if s else "settling", "start_ns": (9 + s) * S,
              "end_ns": (10 + s) * S} for s in range(11)]  # fmt: skip
    base = {"look": "timed", "host": "h", "uuid": "u0"}
    return {
        "steps": frame(steps, points.STEPS),
        "ranks": frame([{"rank": r, "uuid": u} for r, u in enumerate(uuids)], points.RANKS),
        "gpu_samples": frame([base | {"t_ns": int(t * S)} | row for t, row in gpu] or [base], tables.GPU_SAMPLES),
        "host_samples": frame([base | {"t_ns": int(t * S)} | row for t, row in host] or [base], tables.HOST_SAMPLES),
    }


def columns(*args, on_gpus=True, has_tenants=False, **more):
    return conditions.columns(point(*args, **more), on_gpus=on_gpus, has_tenants=has_tenants)


def judged(row, on_gpus=True, has_tenants=False):
    """By the rule, of one host."""
    host = {"other_cpu_percent": None, "steal_percent": None, "psi_cpu_percent": None} | row
    return conditions.judge(row, [host], on_gpus=on_gpus, has_tenants=has_tenants)


def test_means_are_of_the_steady_steps_of_the_ranks_gpus():
    gpu = [
        (9.5, {"sm_clock_mhz": 100, "throttle_reasons": 64, "power_limit_w": 700.0}),
        (11, {"sm_clock_mhz": 1900, "throttle_reasons": 4, "sm_active_percent": 80.0, "dram_active_percent": 10.0}),
        (19, {"sm_clock_mhz": 1800, "throttle_reasons": 0, "sm_active_percent": 90.0}),
        (15, {"sm_clock_mhz": 300, "throttle_reasons": 128, "uuid": "of nobody"}),
        (15, {"sm_clock_mhz": 300, "throttle_reasons": 128, "look": "traced"}),
        (25, {"sm_clock_mhz": 100, "throttle_reasons": 64, "sm_active_percent": 1.0}),
    ]
    row = columns(gpu)
    assert (row["sm_clock_mhz"], row["power_limit_w"]) == (1850.0, 700.0)
    assert (row["sm_active_percent"], row["dram_active_percent"]) == (85.0, 10.0)
    assert (row["power_capped_percent"], row["throttled_percent"]) == (50.0, 0.0)


def test_the_host_with_the_most_load_counts():
    host = [
        (11, {"other_cpu_percent": 1.0, "steal_percent": 0.0}),
        (12, {"other_cpu_percent": 5.0, "steal_percent": 0.4}),
        (12, {"other_cpu_percent": 9.0, "host": "g"}),
        (20.4, {"other_cpu_percent": 3.0, "steal_percent": 0.2}),  # of the half second before
        (9.9, {"other_cpu_percent": 99.0}),
    ]
    row = columns((), host)
    assert row["other_cpu_percent"] == 9.0 and row["steal_percent"] == pytest.approx(0.2)


def test_others_on_one_host_make_no_tasks_of_another_wait():
    quiet = {"steal_percent": 0.0, "psi_cpu_percent": 0.0, "other_cpu_percent": 0.0}
    apart = [(15, quiet | {"psi_cpu_percent": 50.0}), (15, quiet | {"other_cpu_percent": 3.0, "host": "g"})]
    assert columns((), apart, on_gpus=False)["disturbed"] is False
    both = [(15, quiet), (15, quiet | {"psi_cpu_percent": 50.0, "other_cpu_percent": 3.0, "host": "g"})]
    assert columns((), both, on_gpus=False)["disturbed_reason"] == "tasks waited for a core 50 % of the time"


def test_a_host_that_does_not_count_leaves_it_unknown():
    host = [(15, {"steal_percent": 0.0, "other_cpu_percent": 0.0}), (15, {"host": "g"})]
    assert columns((), host[:1], on_gpus=False)["disturbed"] is False
    assert columns((), host, on_gpus=False)["disturbed"] is None
    unseen = point((), host[:1])
    unseen["ranks"] = frame([{"rank": 0, "host": "h"}, {"rank": 1, "host": "g"}], points.RANKS)
    assert conditions.columns(unseen, on_gpus=False, has_tenants=False)["disturbed"] is None
    unseen["ranks"] = unseen["ranks"].head(1)
    assert conditions.columns(unseen, on_gpus=False, has_tenants=False)["disturbed"] is False


@pytest.mark.parametrize("second", [9.2, 15, 20.8])
def test_foreign_processes_are_looked_for_up_to_a_second_around_the_steps(second):
    row = columns([(second, {"foreign_processes": 2})])
    assert row["disturbed"] is True and row["disturbed_reason"] == "foreign processes on a GPU: 2"
    assert columns([(second, {"foreign_processes": 2})], on_gpus=False)["disturbed"] is None
    assert columns([(second, {"foreign_processes": 2})], has_tenants=True)["disturbed"] is None
    assert columns([(25, {"foreign_processes": 2})])["foreign_processes"] is None


@pytest.mark.parametrize(
    ("change", "disturbed"),
    [
        ({}, False),
        ({"other_cpu_percent": 5.1}, True),
        ({"other_cpu_percent": 5.0}, False),
        ({"steal_percent": 2.1}, True),
        ({"steal_percent": 2.0}, False),
        ({"throttled_percent": 0.1}, True),
        ({"foreign_processes": 1}, True),
        ({"psi_cpu_percent": 90.0}, False),  # the job's own tasks
        ({"psi_cpu_percent": 21.0, "other_cpu_percent": 2.1}, True),
        ({"psi_cpu_percent": 20.0, "other_cpu_percent": 2.1}, False),
        ({"steal_percent": None}, None),
        ({"foreign_processes": None}, None),
        ({"throttled_percent": None, "foreign_processes": None, "other_cpu_percent": 30.0}, True),
    ],
)
def test_the_rule(change, disturbed):
    row = judged(QUIET | change)
    assert row["disturbed"] is disturbed and bool(row["disturbed_reason"]) == bool(disturbed)


def test_a_point_without_gpus_is_judged_by_its_host():
    known = {"other_cpu_percent": 0.0, "steal_percent": 0.0}
    assert judged(known, on_gpus=False)["disturbed"] is False
    assert judged(known)["disturbed"] is None


def test_tenants_are_no_disturbance():
    known = QUIET | {"other_cpu_percent": 40.0, "foreign_processes": 3, "psi_cpu_percent": 50.0}
    assert judged(known, has_tenants=True)["disturbed"] is False
    assert judged(known | {"steal_percent": 9.0}, has_tenants=True)["disturbed"] is True


def test_only_what_is_known_to_be_disturbed_is_left_out():
    frame = pl.DataFrame({"point_id": ["a", "b", "c"], "disturbed": [True, False, None]})
    assert dataset.undisturbed(frame)["point_id"].to_list() == ["b", "c"]
