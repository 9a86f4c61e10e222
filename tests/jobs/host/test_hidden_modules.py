"""Packages that are hidden from libraries for a while."""

import importlib.util
import subprocess
import sys

import pytest

from nightsweep.jobs.host.hidden_modules import UNUSED, hidden


def test_what_is_hidden_is_not_found_until_the_end_and_what_is_imported_stays(tmp_path, monkeypatch):
    (tmp_path / "hidden_here.py").write_text("VALUE = 3")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyError), hidden("hidden_here", "json"):
        assert importlib.util.find_spec("hidden_here") is None
        with pytest.raises(ImportError):
            importlib.import_module("hidden_here")
        assert importlib.import_module("json").loads("3") == 3
        raise KeyError
    assert importlib.import_module("hidden_here").VALUE == 3
    del sys.modules["hidden_here"]


def test_what_cannot_be_without_a_hidden_package_is_hidden_too():
    """Older releases of transformers (5.17) import scikit-learn where it is installed."""
    code = "from nightsweep.jobs.host.hidden_modules import *\nwith hidden(*UNUSED):\n    import sklearn.metrics"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "scipy" in UNUSED and "'sklearn' is not a package" in done.stderr
