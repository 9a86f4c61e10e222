"""What FSDP2's hooks launch, told by their ranges."""

from types import SimpleNamespace

import polars as pl
import pytest

from nightsweep.analysis.diagnosis.evidence import hooks

RANGES = [
    ("FSDP::root_pre_forward", 0, 90),
    ("FSDP::inputs_to_device", 10, 20),
    ("FSDP::pre_forward (layers.0)", 100, 200),
    ("FSDP::all_gather (layers.0)", 120, 150),
    ("FSDP::cast_forward_inputs", 210, 220),
    ("FSDP::post_backward_accumulate (layers.0)", 300, 320),
    ("FSDP::post_backward_reduce (layers.0)", 330, 360),
    ("my own FSDP::pre_forward", 400, 500),
]
LAUNCHES = {15: False, 110: True, 130: True, 199: True, 200: False, 215: False, 310: False, 340: True, 450: False}
"""By time, and whether it is a hook's for a message."""


def lane(ranges, launches, thread=1):
    nvtx = pl.DataFrame(ranges, ["name", "start_ns", "end_ns"], orient="row").with_columns(thread=pl.lit(1, pl.Int32))
    rows = [(0, 7, 1000 + at, thread, at) for at in launches]
    schema = {"device": pl.Int32, "stream": pl.Int64, "start_ns": pl.Int64, "thread": pl.Int32, "launch_ns": pl.Int64}
    work = pl.DataFrame(rows, schema, orient="row")
    own = {"kernels": work[::2], "copies": work[1::2], "memsets": work.clear()}
    return SimpleNamespace(events={"nvtx": nvtx}, own=own)


def test_launches_are_told_by_the_hook_that_they_are_in():
    found = hooks.launches_for_messages(lane(RANGES, LAUNCHES))
    assert sorted(found["launch_ns"]) == [at for at, counts in LAUNCHES.items() if counts]


@pytest.mark.parametrize("thread", [2, None])
def test_launches_of_other_threads_or_of_none_are_not(thread):
    assert hooks.launches_for_messages(lane(RANGES, LAUNCHES, thread)).is_empty()


@pytest.mark.parametrize(
    ("accumulated", "reduced", "gathered", "expected"),
    [(8, 8, 1, True), (8, 1, 1, False), (8, 1, 16, True), (0, 0, 1, False)],
)
def test_a_script_sends_in_each_pass_unless_it_reduces_in_the_last_and_gathers_in_the_first_alone(
    accumulated, reduced, gathered, expected
):
    ranges = [("FSDP::post_backward_accumulate (a)", 0, 1)] * accumulated
    ranges += [("FSDP::post_backward_reduce (a)", 0, 1)] * reduced + [("other", 0, 1)]
    ranges += [("FSDP::all_gather (a)", 0, 1)] * gathered + [("FSDP::all_gather_copy_out", 0, 1)] * 20
    assert hooks.sends_in_each_pass(lane(ranges, [])) is expected
