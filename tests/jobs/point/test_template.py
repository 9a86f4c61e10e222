"""Commands with fields: how they become words, and which are refused."""

import shlex
import string

import pytest

from nightsweep.jobs.point import template
from nightsweep.jobs.point.check import reasons
from nightsweep.jobs.point.point import complete


def words(command, **known):
    return template.words(command, known)


@pytest.mark.parametrize("value", [*string.punctuation, " ", "\n", "\\'\"", "$(id)", "{x}", "a b", "é", "\0"])
def test_a_value_is_one_word_whatever_is_in_it(value):
    assert words("train.py --a {x} '{x}' b{x}c", x=value) == ["train.py", "--a", value, value, f"b{value}c"]
    assert words(shlex.join(["train.py", "a b", "{x}"]), x=value) == ["train.py", "a b", value]


def test_values_are_written_as_yaml_has_them():
    assert words("{a} {b} {c} {d} {e}", a=True, b=0.001, c=3, d="", e=None) == ["true", "0.001", "3", ""]
    assert words("--flag={e} {{a}}", e=None) == ["--flag=None", "{a}"]


@pytest.mark.parametrize("text", ["{", "}", "{a", "{a:3}", "{a!r}", "{}", "{a[0]}", "{'a': 1}", "{a b}"])
def test_braces_that_are_no_field_are_refused(text):
    with pytest.raises(template.TemplateError, match="written twice"):
        template.fields(text)


CASES = {
    "a slip of the pen": ({"warmup_stps": 3}, "unknown setting (did you mean 'warmup_steps'?)"),
    "an axis that nothing reads": ({"zzz": 3}, "unknown setting (the command has no {zzz})"),
    "a setting of another workload": ({"micro_batch": 3}, "no setting of workload command (the command has no "),
    "a field without an axis": ({"command": "t.py {lr}"}, "{lr} is neither an axis nor a setting (there are "),
    "a quote that stays open": ({"command": "t.py 'a"}, "cannot be divided into words: no closing quotation"),
    "an edit of no file": ({"config.lr": 3}, "changes a file, and config_file names none"),
    "a file that is not read": ({"config_file": "c.json"}, "is not read: the command has no {config_file}"),
    "options of no launcher": ({"launcher": "srun", "launcher_options": "-x"}, "launcher srun takes no options"),
    "a precision that cannot be imposed": ({"precision": "fp64"}, "a script can be switched to tf32 and bf16, not to "),
    "a hook that cannot be imposed": ({"comm_hook": "topk"}, "a script can be switched to bf16, fp16 and powersgd, "),
}


@pytest.mark.parametrize(("more", "words"), CASES.values(), ids=CASES)
def test_what_is_wrong_with_a_command_is_said(more, words):
    (reason,) = reasons(complete({"workload": "command", "command": "t.py"} | more))
    assert reason.text.startswith(words)


def test_a_point_of_a_script_knows_its_axes_and_keeps_its_id():
    settings = {"workload": "command", "command": "t.py {lr} {learning_rate}", "lr": 0.1, "learning_rate": "x"}
    point = complete(settings)
    assert (point.value("lr"), point.value("learning_rate"), point.learning_rate) == (0.1, "x", None)
    assert (point.value("compile"), point.micro_batch, point.strategy) == (None, None, None)
    assert complete(point.settings()) == point and complete(point.settings()).id == point.id
    ids = {complete(settings | change).id for change in ({}, {"lr": 0.2}, {"lr": None}, {"env.A": 1}, {"code": "f"})}
    assert len(ids) == 5
