"""`import nightsweep`: its examples, its errors, and what importing it costs."""

import doctest
import subprocess
import sys

import pytest
from polars.testing import assert_frame_equal

import nightsweep
from nightsweep.analysis.tools import cli
from nightsweep.jobs.host.facts import ROOT

DATA = ROOT / "tests/data"
TRACES = [DATA / f"kineto-h200-ddp-r{rank}.json.gz" for rank in (0, 1)]


@pytest.mark.parametrize("name", ["read", "diagnose", "compare"])
def test_the_examples_of_a_function(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    function = getattr(nightsweep, name)
    (found,) = (t for t in doctest.DocTestFinder(recurse=False).find(function, name) if t.examples)
    assert doctest.DocTestRunner().run(found).failed == 0


def test_the_examples_of_the_page(monkeypatch):
    monkeypatch.chdir(ROOT)
    result = doctest.testfile(str(ROOT / "docs/python.md"), module_relative=False)
    assert result.attempted > 10 and result.failed == 0


def test_every_public_name_is_there_and_typed():
    for name in dir(nightsweep):
        assert getattr(nightsweep, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'red'"):
        nightsweep.red  # noqa: B018
    assert (ROOT / "nightsweep/py.typed").exists()


def test_a_script_may_mark_its_steps_without_nightsweep_running_it():
    assert nightsweep.step() is None


def test_importing_it_loads_neither_polars_nor_torch_and_reading_needs_no_torch():
    code = (
        "import sys, nightsweep; assert not {'polars', 'numpy', 'torch'} & sys.modules.keys();"
        f"nightsweep.diagnose({str(TRACES[0])!r}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_script_need_not_guard_its_calls(tmp_path):
    """Where traces are large enough to be read in processes of their own."""
    script = tmp_path / "script.py"
    script.write_text(
        "import nightsweep\n"
        "from nightsweep.analysis.ingest import trace_tables\n"
        "trace_tables.LARGE_BYTES = 0\n"
        f"print(nightsweep.diagnose(*{list(map(str, TRACES))}).causes[0].kind)\n"
    )
    done = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "host_work\n"), done.stderr


def test_traces_and_the_folder_of_their_tables_are_the_same(tmp_path):
    assert cli.main(["ingest", *map(str, TRACES), "--out", str(tmp_path)]) == 0
    read, kept = nightsweep.read(*TRACES), nightsweep.read(tmp_path)
    assert sorted(read.names()) == sorted(kept.names())
    for name in ("kernels", "step_parts", "collectives"):
        assert read[name].height and read[name]["rank"].unique().to_list() == [0, 1]
        assert_frame_equal(read[name], kept[name])


def test_a_point_of_a_data_set_has_its_rows():
    points = ROOT / "data/h200-2026-11-27"
    whole, point_id = nightsweep.read(points), "042c2f281434"
    own = nightsweep.read(points / "points" / point_id)
    assert own["points"]["point_id"].to_list() == [point_id]
    assert own["steps"].height == whole["steps"].filter(point_id=point_id).height > 0


@pytest.mark.parametrize("function", ["read", "diagnose"])
def test_what_cannot_be_read_is_one_line(function, tmp_path):
    call = getattr(nightsweep, function)
    words = tmp_path / "words.json"
    words.write_text("no trace")
    (tmp_path / "empty").mkdir()
    damaged = tmp_path / "tables"
    assert cli.main(["ingest", str(TRACES[0]), "--out", str(damaged)]) == 0
    for file in damaged.glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:-9])
    for case in (tmp_path / "none", words, tmp_path / "empty", damaged):
        with pytest.raises(nightsweep.InputError) as error:
            call(case)
        assert str(case) in str(error.value) and "\n" not in str(error.value)
