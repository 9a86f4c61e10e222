"""Pairs of a sweep file: the points that they stand for, and the one line that each mistake gives."""

import pytest

from nightsweep.jobs.sweep.sweep import SweepError, load

HEAD = """
name: night
base: {workload: image, model: resnet50, device: cpu}
bases: {small: {micro_batch: 4}}
"""


def write(tmp_path, text):
    file = tmp_path / "sweep.yaml"
    file.write_text(HEAD + text)
    return file


def test_a_pair_is_two_points_over_its_base(tmp_path):
    text = "pairs: {bf16: {base: small, both: {layout: nhwc}, without: {precision: fp32}, with: {precision: bf16}}}"
    sweep = load(write(tmp_path, text))
    (pair,) = sweep.pairs
    assert [(p.micro_batch, p.layout, p.precision) for p in sweep.points] == [(4, "nhwc", "fp32"), (4, "nhwc", "bf16")]
    assert pair.points() == sweep.points


def test_points_that_pairs_share_are_one_and_those_not_shown_are_none(tmp_path):
    text = """
pairs:
  bf16: {with: {precision: bf16}}
  nhwc: {with: {layout: nhwc}}
  mig: {not_shown: set by the administrator}
"""
    sweep = load(write(tmp_path, text))
    assert len(sweep.points) == 3 and [pair.not_shown for pair in sweep.pairs][2] == "set by the administrator"


@pytest.mark.parametrize(
    ("pair", "line"),
    [
        ("{base: big, with: {layout: nhwc}}", "pairs.x.base: 'big' is none of the bases (there are small)"),
        ("{base: small}", "pairs.x: has no switch; 'without' or 'with' is expected"),
        ("{without: {layout: nhwc}, with: {layout: nhwc}}", "pairs.x.with: is the same as 'without'"),
        ("{both: {layout: nhwc}, with: {layout: nchw}}", "pairs.x.both.layout: is the switch's, too"),
        ("{with: {layuot: nhwc}}", "pairs.x.with.layuot: unknown setting (did you mean 'layout'?)"),
        ("{with: {layout: sideways}}", "pairs.x.with.layout: 'sideways' is not one of"),
        ("{with: {seq_len: 8}}", "pairs.x.with.seq_len: is a setting of llm, given for image (1 point)"),
        ("[with]", "pairs.x: ['with'] is not a map"),
        ("{on: {layout: nhwc}}", "unknown key"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(tmp_path, pair, line):
    with pytest.raises(SweepError) as error:
        load(write(tmp_path, f"pairs: {{x: {pair}}}"))
    assert len(error.value.errors) == 1 and line in error.value.errors[0]


def test_a_name_given_twice_is_refused(tmp_path):
    with pytest.raises(SweepError, match="'x' is given twice"):
        load(write(tmp_path, "pairs:\n  x: {with: {layout: nhwc}}\n  x: {with: {precision: bf16}}\n"))
