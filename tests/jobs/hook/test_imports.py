"""What waits for a module's import."""

import importlib
import importlib.util
import sys

import pytest

from nightsweep.jobs.hook.imports import after_import


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "waited_for.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    yield "waited_for"
    sys.modules.pop("waited_for", None)


def test_that_is_called_once_and_after_the_module_is_whole(module):
    seen = []
    after_import({module: lambda found: seen.append(found.value)})
    for _ in range(2):
        importlib.import_module(module)
    assert seen == [1]


def test_a_question_where_the_module_is_changes_nothing(module):
    """transformers, accelerate and peft ask so for torch before a script of theirs imports it."""
    seen = []
    after_import({module: lambda found: seen.append(found.value)})
    for _ in range(2):
        assert importlib.util.find_spec(module).origin.endswith("waited_for.py")
    assert seen == []
    importlib.import_module(module)
    assert seen == [1]


def test_two_that_wait_for_one_module_are_both_called(module):
    seen = []
    for name in ("first", "second"):
        after_import({module: lambda _, name=name: seen.append(name)})
    importlib.import_module(module)
    assert sorted(seen) == ["first", "second"]


def test_a_module_that_fails_calls_nothing_until_it_is_imported(module, tmp_path):
    seen, path = [], tmp_path / "waited_for.py"
    path.write_text("raise ImportError('not today')\n")
    after_import({module: lambda found: seen.append(found.value)})
    with pytest.raises(ImportError, match="not today"):
        importlib.import_module(module)
    path.write_text("value = 2222222222222\n")
    importlib.import_module(module)
    assert seen == [2222222222222]
