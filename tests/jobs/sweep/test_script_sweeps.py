"""Sweeps of scripts: what a file may say, and what of the script's files makes another point."""

import subprocess
from pathlib import Path

import pytest
import yaml

from nightsweep.analysis.tools.size import as_text
from nightsweep.jobs.launch.attempt import changed_code
from nightsweep.jobs.record.json_files import load_json
from nightsweep.jobs.sweep import code
from nightsweep.jobs.sweep.driver import Run
from nightsweep.jobs.sweep.rounds import PointList
from nightsweep.jobs.sweep.sweep import SweepError, load

BASE = {"workload": "command", "command": ["train.py", "--lr", "{lr}"]}


def read(tmp_path, monkeypatch, **content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("x = 1")
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"name": "s", "base": BASE} | content))
    return load(path)


def test_axes_have_any_names_and_switches_may_be_null(tmp_path, monkeypatch):
    axes = {"lr": [0.1, "a b"], "env.X": [1, None], "compile": [None, "default"]}
    sweep = read(tmp_path, monkeypatch, axes=axes, exclude=[{"lr": 0.1, "env.X": 1}])
    assert len(sweep.points) == 6
    assert sweep.varying() == ("compile", "env.X", "lr")
    assert sweep.points[0].command == "train.py --lr '{lr}'"
    assert "lr=a b" in as_text(sweep, True)


def errors(tmp_path, monkeypatch, **content):
    with pytest.raises(SweepError) as caught:
        read(tmp_path, monkeypatch, **content)
    return caught.value.errors


BAD = {
    "no command": ({"base": {"workload": "command"}}, "base.command: is required: the script and its arguments"),
    "another workload beside it": (
        {"axes": {"workload": ["image"], "lr": [1]}},
        "axes.workload: command stands alone in a sweep, as base.workload",
    ),
    "no such script": (
        {"base": BASE | {"command": "nowhere.py"}},
        "base.command: nowhere.py: no such file",
    ),
    "no such folder": ({"base": BASE | {"workdir": "nowhere"}, "axes": {"lr": [1]}}, "base.workdir: nowhere: no such"),
    "a value that is a list": ({"axes": {"lr": [[1]]}}, "axes.lr[0]: [1] is not a number, a text, true, false or null"),
    "a slip of the pen": ({"axes": {"lr": [1], "reapeat": [2]}}, "axes.reapeat[0]: unknown setting (did you mean 'rep"),
    "a variable that a setting sets": (
        {"axes": {"lr": [1], "env.OMP_NUM_THREADS": [None, 4], "cpu_threads": [None, 8]}},
        "point(env.OMP_NUM_THREADS=4, cpu_threads=8): env.OMP_NUM_THREADS is set by cpu_threads too (1 point)",
    ),
    "a file that cannot be read": (
        {"base": BASE | {"files": "/proc/self/mem"}},
        "base.files: /proc/self/mem: cannot be read: Input/output error",
    ),
    "a launcher before the script": (
        {"base": BASE | {"command": "torchrun --nproc-per-node 2 train.py"}},
        "base.command: begins with torchrun: give the script alone, and launcher: torchrun (its options are",
    ),
    "a bad switch": ({"axes": {"lr": [1], "compile": ["fast"]}}, "axes.compile[0]: 'fast' is not one of none, default"),
}


@pytest.mark.parametrize(("content", "words"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_said_in_one_line(tmp_path, monkeypatch, content, words):
    found = errors(tmp_path, monkeypatch, **content)
    assert any(line.startswith(words) for line in found), found
    assert not any("\n" in line for line in found)


def test_keys_that_a_config_file_lacks(tmp_path, monkeypatch):
    (tmp_path / "train.yaml").write_text("model: {size: 3}\nlayers: [{wide: 1}]\n")
    base = BASE | {"command": "train.py {config_file}", "config_file": "train.yaml"}
    good = {"config.model.size": [1, 2], "config.layers.0.wide": [1, "x"]}
    assert len(read(tmp_path, monkeypatch, base=base, axes=good).points) == 4
    bad = {"config.model.sice": [1, 2], "config.layers.1.wide": [1], "config.layers.first": [1]}
    assert set(errors(tmp_path, monkeypatch, base=base, axes=bad)) == {
        f"axes.{name}[0]: train.yaml: has no key {name.removeprefix('config.')}" for name in bad
    }
    (tmp_path / "train.yaml").write_text("model: [")
    (line,) = errors(tmp_path, monkeypatch, base=base, axes={"config.model": [1]})
    assert line.startswith("axes.config.model[0]: train.yaml: ")


def test_an_edited_script_is_another_point(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text("1")
    content = {"base": BASE | {"files": "*.py", "version": "v1"}, "axes": {"lr": [1]}}
    ids = {read(tmp_path, monkeypatch, **content).points[0].id}
    for name, text in (("model.py", "2"), ("other.py", "3")):
        (tmp_path / name).write_text(text)
        ids.add(read(tmp_path, monkeypatch, **content).points[0].id)
    ids.add(read(tmp_path, monkeypatch, base=content["base"] | {"version": "v2"}, axes={"lr": [1]}).points[0].id)
    assert len(ids) == 4


def test_files_may_be_anywhere(tmp_path, monkeypatch):
    """Absolute ones outside of workdir left the point without a code, so that no edit made another, and ended its job
    without a record."""
    (tmp_path / "lib").mkdir()
    base = BASE | {"files": str(tmp_path / "lib/model.py")}
    found = []
    for text in ("1", "2"):
        (tmp_path / "lib/model.py").write_text(text)
        found.append(read(tmp_path, monkeypatch, base=base, axes={"lr": [1]}).points[0])
        assert changed_code(found[-1], {}) is None
    assert found[0].code and found[0].id != found[1].id
    changed = f"{tmp_path}/lib/model.py changed since the sweep was read"
    assert changed_code(found[0], {str(tmp_path / "lib/model.py"): "of the first"}) == changed


def test_files_that_changed_are_named(tmp_path, monkeypatch, capsys):
    """Where a point is to be run and its script has been edited meanwhile, and where the edited sweep is run again."""
    names = ["model.py", *(f"part{number}.py" for number in range(4))]
    for name in names:
        (tmp_path / name).write_text("1")
    content = {"base": BASE | {"files": "*.py", "workdir": str(tmp_path)}, "axes": {"lr": [1]}}
    sweep = read(tmp_path, monkeypatch, **content)
    begin(tmp_path, sweep)
    listed = load_json(tmp_path / "results/sweep.json", PointList)
    assert changed_code(sweep.points[0], listed.files) is None
    (tmp_path / "model.py").write_text("2")
    assert changed_code(sweep.points[0], listed.files) == f"{tmp_path}/model.py changed since the sweep was read"
    assert changed_code(sweep.points[0], {}) == "the script, or a file of it, changed since the sweep was read"
    begin(tmp_path, sweep)
    assert capsys.readouterr().err == ""
    for name in names:
        (tmp_path / name).write_text("3")
    begin(tmp_path, read(tmp_path, monkeypatch, **content))
    shown = ", ".join(f"{tmp_path}/{name}" for name in names[:3])
    assert capsys.readouterr().err.startswith(f"{shown} and 2 more changed: ")


def test_that_tables_become_another_sweep_s_is_said(tmp_path, monkeypatch, capsys):
    """Of the same name; where points are left, or are added, it is the same one."""
    for axis, said in (
        ([1, 2], ""),
        ([2, 3], ""),
        ([4], "listed 2 other points, of another preset or of a sweep with the same name: none of them was measured"),
        ([4], ""),
        (
            [5, 6],
            "listed 1 other point, of another preset or of a sweep with the same name: 1 of them is measured and kept",
        ),
    ):
        sweep = read(tmp_path, monkeypatch, axes={"lr": axis})
        begin(tmp_path, sweep)
        if axis == [4]:
            record = tmp_path / "results/points" / sweep.points[0].id / "record.json"
            record.parent.mkdir(parents=True, exist_ok=True)
            record.touch()
        shown = capsys.readouterr().err
        assert said in shown and bool(shown) is bool(said)


def begin(tmp_path, sweep):
    """As a driver does that then ends."""
    run = Run(tmp_path / "results", sweep)
    run.begin(None)
    run.lock.close()


def test_points_and_pairs_of_one_sweep_have_the_same_code(tmp_path, monkeypatch):
    """Although the script is edited while it runs; whoever starts it sees the edit."""
    base = BASE | {"command": "train.py {ms}", "ms": 2}
    sweep = read(tmp_path, monkeypatch, base=base, pairs={"slower": {"with": {"ms": 4}}})
    ids = {point.id for point in sweep.points}
    (tmp_path / "train.py").write_text("x = 2")
    assert {point.id for point in sweep.pairs[0].points()} == ids
    assert code.read(sweep.points[0]).whole != sweep.points[0].code
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/train.py").write_text("x = 3")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert not ids & {point.id for point in sweep.pairs[0].points()}


def test_git_makes_points_of_commits_and_changes(tmp_path, monkeypatch):
    content = {"base": BASE | {"version": "git"}, "axes": {"lr": [1]}}
    (line,) = errors(tmp_path, monkeypatch, **content)
    assert line.startswith("base.version: ") and "git cannot say which commit it is at" in line
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for command in (["init", "-q"], ["add", "train.py"], [*identity, "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    first = read(tmp_path, monkeypatch, **content).points[0]
    (tmp_path / "notes.txt").write_text("new, and not git's")
    assert read(tmp_path, monkeypatch, **content).points[0].id == first.id
    subprocess.run(["git", "add", "notes.txt"], cwd=tmp_path, check=True)
    assert read(tmp_path, monkeypatch, **content).points[0].id != first.id


def test_the_sweep_of_the_documentation_can_be_read(tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs/scripts.md").read_text()
    content = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    content["base"]["workdir"] = str(tmp_path)
    assert len(read(tmp_path, monkeypatch, **content).points) == 32
