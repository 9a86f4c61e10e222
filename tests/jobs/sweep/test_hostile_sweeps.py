"""Sweep files that would fill the memory, never end or be read as something else: one line each, in under a second."""

import os
from pathlib import Path

import pytest

from nightsweep.jobs.point.point import FIELDS, setting_schema
from nightsweep.jobs.sweep.file import schema
from nightsweep.jobs.sweep.sweep import SweepError, load
from tests.effort import effort
from tests.jobs.sweep.test_sweep import BASE, errors, sweep

SCRIPT = "name: s\nbase: {workload: command, command: 'train.py {a}'}\n"
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefghij", "bcdefghijk", strict=True)
)
HOSTILE = [
    (BOMB, "line 6: bad YAML: more than 100000 keys and values, aliases written out"),
    ("name: &a [*a]", "line 1: bad YAML: *a stands within itself"),
    ("name: " + "[" * 5000, "line 1: bad YAML: more than 20 lists and maps in each other"),
    ("name: " + "{a: " * 5000, "line 1: bad YAML: more than 20 lists and maps in each other"),
    ("name: s\n" + "# and so on\n" * 200_000, "file: bad YAML: larger than 2 MiB"),
    (BASE + f"axes: {{nodes: [1{'0' * 399}]}}", "line 3: bad YAML: a number of 400 characters"),
    (BASE + f"axes: {{nodes: [0x{'f' * 5000}]}}", "line 3: bad YAML: a number of 5002 characters"),
    (BASE + "axes: {cost_pairs: [2147483648]}", "axes.cost_pairs[0]: 2147483648 is more than 1000"),
    (BASE + "axes: {timed_steps: [99999999999]}", "axes.timed_steps[0]: 99999999999 is more than 10000000"),
    (
        BASE + "axes: {nodes: [10000], ranks_per_node: [1024], timed_steps: [10000000]}",
        "file: about 3.3e+09 GPU-hours are more than 1e+07",
    ),
    (BASE + "remedy_rounds: 123456789012345678", "remedy_rounds: 123456789012345678 is more than 100"),
    (f"name: {'s' * 5000}", f"name: '{'s' * 56}... is 5000 characters long, more than 100"),
    (BASE + f"presets: {{{'p' * 500}: {{}}}}", f"presets: '{'p' * 56}... is 500 characters long, more than 100"),
    (BASE + f"axes: {{data: [{'d' * 5000}]}}", f"axes.data[0]: '{'d' * 56}... is 5000 characters long, more than 4096"),
    (
        BASE + "axes: {fault: ['kill@rank٣:step1']}",
        "axes.fault[0]: 'kill@rank٣:step1' is not KIND@rankR:stepS with KIND one of exception, kill, nan, hang",
    ),
    (
        BASE + 'axes: {fault: ["kill@rank0:step1\\n"]}',
        "axes.fault[0]: 'kill@rank0:step1\\n' is not KIND@rankR:stepS with KIND one of exception, kill, nan, hang",
    ),
    (
        BASE + "design: {precision: {half_width: ٣%, least: 3, most: 9}}",
        "design.precision.half_width: '٣%' is not a percentage above 0%, as 2%",
    ),
    (BASE + "axes: {learning_rate: [٣e3]}", "axes.learning_rate[0]: '٣e3' is not a finite number"),
    (BASE + "resources: {timeout_min: 1:30}", "resources.timeout_min: '1:30' is not an integer"),
    (BASE + "axes: {learning_rate: [1:30.5]}", "axes.learning_rate[0]: '1:30.5' is not a finite number"),
    (BASE + "axes: {nodes: [010]}", "axes.nodes[0]: '010' is not an integer"),
    (BASE + 'axes: {data: ["a\\0b"]}', "line 3: bad YAML: the character U+0000 in a text"),
    (BASE + 'axes: {data: ["a\\ud800b"]}', "line 3: bad YAML: found invalid Unicode character escape code"),
    (BASE + 'axes: {data: ["\\e[31m"]}', "line 3: bad YAML: the character U+001B in a text"),
    (
        BASE + "axes: {" + ", ".join(f"{n}: {list(range(1, 1001))}" for n in ("seed", "nodes", "epochs")) + "}",
        "file: 1000000000 points are more than 100000",
    ),
    (
        SCRIPT + "axes: {" + ", ".join(f"a{n}: [1, 2, 3]" for n in range(3000)) + "}",
        "file: 10^15 and more points are more than 100000",
    ),
]  # fmt: skip
AT_ONCE = 120
"""Of effort.py: a second or less. What takes longest takes a quarter of it."""


@pytest.mark.parametrize(("text", "expected"), HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_file_gives_one_line_at_once(tmp_path, text, expected):
    found = []
    assert effort(lambda: found.append(errors(tmp_path, text)), AT_ONCE) <= AT_ONCE
    assert found[0] == [expected]


@pytest.mark.parametrize("kind", ["pipe", "/dev/zero"])
def test_what_is_no_file_is_not_opened(tmp_path, kind):
    path = Path(kind) if kind.startswith("/") else tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(SweepError, match=r"^file: cannot be read: is no regular file$"):
        load(path)


def test_of_many_errors_the_first_hundred(tmp_path):
    found = errors(tmp_path, BASE + "axes: {" + ", ".join(f"seet{n}: [1]" for n in range(3000)) + "}")
    assert len(found) == 101 and found[-1] == "file: and more errors"


def test_texts_that_other_versions_of_yaml_read_as_numbers_are_a_script_s_as_written(tmp_path):
    (tmp_path / "train.py").touch()
    text = SCRIPT.replace("'train", f"'{tmp_path}/train") + "axes: {a: [1:30, 010, 1_000, 0x1f, -.5, 1e-3]}"
    values = [dict(point.variables)["a"] for point in sweep(tmp_path, text).points]
    assert values == ["1:30", "010", 1000, 31, -0.5, 1e-3]


def test_many_entries_of_exclude_on_many_points(tmp_path):
    """The time of reading them, which is in proportion to their number; compared one by one they take minutes."""
    dropped = "".join(f"- {{seed: {seed}}}\n" for seed in range(20_000))
    text = BASE + f"axes: {{seed: {list(range(20_001))}}}\nexclude:\n{dropped}"
    found = []
    assert effort(lambda: found.append(sweep(tmp_path, text)), 1500) <= 1500
    assert [p.seed for p in found[0].points] == [20_000]


def test_a_file_of_too_many_entries_is_refused_where_it_has_too_many(tmp_path):
    found = errors(tmp_path, BASE + "exclude:\n" + "- {seed: 1}\n" * 40_000)
    assert found == ["line 33333: bad YAML: more than 100000 keys and values, aliases written out"]


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_has_bounds(name):
    spec = setting_schema(name)
    bounds = {"integer": {"maximum"}, "number": {"maximum", "exclusiveMaximum"}, "string": {"maxLength"}}
    closed = "enum" in spec or spec["type"] == "boolean" or name == "fault"  # whose pattern says it
    assert closed or bounds[spec["type"]] & spec.keys()


@pytest.mark.parametrize("scripts", [True, False])
def test_every_number_of_a_file_has_a_bound(scripts):
    def numbers(part, path):
        if isinstance(part, dict):
            if part.get("type") in ("integer", "number"):
                yield path, part
            for key, value in part.items():
                yield from numbers(value, f"{path}.{key}")

    found = list(numbers(schema(scripts), ""))
    assert found and [path for path, part in found if not {"maximum", "exclusiveMaximum"} & part.keys()] == []
