"""What waits for a module's import."""

import importlib
import importlib.util
import sys
import zipfile

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


def test_finders_of_others_may_be_old_or_call_it_themselves(module, monkeypatch):
    seen = []
    after_import({module: lambda found: seen.append(found.value), "nowhere_at_all": seen.append})
    ours = sys.meta_path.pop(0)
    wrapper = type("Wrapper", (), {"find_spec": lambda self, *asked: ours.find_spec(*asked)})()
    old = type("Old", (), {"find_module": lambda self, *asked: None})()
    sys.meta_path[:0] = [wrapper, old]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("nowhere_at_all")
    importlib.import_module(module)
    assert seen == [1]


def test_another_module_of_the_same_archive_calls_nothing(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:
        for name in ("waited_for_too", "other_of_it"):
            archive.writestr(f"{name}.py", "")
    monkeypatch.syspath_prepend(tmp_path / "both.zip")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    seen = []
    after_import({"waited_for_too": lambda found: seen.append(found.__name__)})
    importlib.util.find_spec("waited_for_too")
    importlib.import_module("other_of_it")
    assert seen == []
    importlib.import_module("waited_for_too")
    assert seen == ["waited_for_too"]
