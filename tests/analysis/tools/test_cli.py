"""The command nightsweep: what it prints and its exit status."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from nightsweep.analysis.ingest.derived import Derived
from nightsweep.analysis.tools.cli import main
from nightsweep.analysis.tools.derive import derive
from nightsweep.jobs.sweep.driver import take_lock
from nightsweep.jobs.sweep.sweep import load

ROOT = Path(__file__).parents[3]
DEMO = str(ROOT / "config/demo.yaml")


def test_check_tells_size_and_cost(capsys):
    assert main(["check", DEMO]) == 0
    out = capsys.readouterr().out
    assert "demo: 8 points" in out
    assert "1 x 2 (nodes x ranks): 6 points of 2 GPUs, " in out
    assert "GPU-hours" in out
    assert "coarse" in out


def test_check_list_names_what_varies(capsys):
    assert main(["check", DEMO, "--preset", "smoke", "--list"]) == 0
    lines = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert len(lines) == 2
    assert "workload=image" in lines[0]
    assert "seq_len" not in lines[1]


def test_check_list_is_a_line_a_point_whatever_its_settings_hold(tmp_path, capsys):
    text = f'name: s\nbase: {{workload: command, workdir: {tmp_path}, command: "python t.py {{x}}"}}\n'
    (tmp_path / "s.yaml").write_text(text + 'axes: {x: ["é", "a b", "", "a\\nb", true, 1]}\n')
    (tmp_path / "t.py").touch()
    assert main(["check", str(tmp_path / "s.yaml"), "--list"]) == 0
    lines = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert [line.split("x=")[1] for line in lines] == ["é", "a b", '""', r'"a\nb"', "true", "1"]


def test_check_json(capsys):
    assert main(["check", DEMO, "--json", "--list"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["points"] == len(content["list"]) == 8
    assert content["estimate"]["note"].startswith("coarse")


def test_errors_one_a_line(tmp_path, capsys):
    file = tmp_path / "s.yaml"
    file.write_text("name: s\nbase: {workload: image, model: resnet50, nodes: 0}\naxes: {precison: [fp32]}\n")
    assert main(["check", str(file)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        f"{file}: base.nodes: 0 is less than 1",
        f"{file}: axes.precison: unknown setting (did you mean 'precision'?)",
    ]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "file: cannot be read: No such file or directory"),
        (b"", "file: is empty"),
        (b"# only a comment\n", "file: is empty"),
        (b"name: s\nbase: [1\n", "line 3: bad YAML: did not find expected ',' or ']'"),
        (b"name: \xff\xfe\n", "file: bad YAML: "),
        (b"a: &a [*a]\n", "line 1: bad YAML: *a stands within itself"),
        (b"[" * 5000, "line 1: bad YAML: more than 20 lists and maps in each other"),
        (b"name: s\n--- \nname: t\n", "line 2: bad YAML: "),
        (b"name: !!bool x\n", "file: bad YAML: "),
        (b"name: !!timestamp x\n", "file: bad YAML: "),
        (b"name: s\nbase: {learning_rate: 1" + b"0" * 400 + b"}\n", "line 2: bad YAML: a number of 401 characters"),
        (b"name: s\npresets: {1: {}}\n", "presets: 1 is not a text"),
        (b"name: s\n? [a]\n: 1\n", "bad YAML: "),
    ],
)
def test_unreadable_files(tmp_path, capsys, content, what):
    file = tmp_path / "s.yaml"
    if content is not None:
        file.write_bytes(content)
    assert main(["check", str(file)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert what in lines[0]
    assert len(lines) == 1


def test_a_folder_is_no_sweep(tmp_path, capsys):
    assert main(["check", str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err


def test_reader_that_leaves_early():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "nightsweep.analysis.tools.cli", "check", DEMO, "--list"],
        cwd=ROOT,
        stdout=write,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    assert done.stderr == b""


def test_retry_sets_lost_points_aside(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(
        "name: s\nbase: {workload: image, model: mobilenet_v2}\naxes: {ranks_per_node: [1, 2, 4]}\n"
    )
    ids = [p.id for p in load(Path("s.yaml")).points]
    for point, reason in zip(ids, ("node_failure", "rank_exception", None), strict=True):
        folder = Path("results/s/points") / point
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(json.dumps({"status": "failed" if reason else "ok", "reason": reason}))
    earlier = Path("results/s/points", ids[0], "record.aside-2.json")  # somebody has deleted the first one
    earlier.touch()
    with take_lock(Path("results/s")):
        assert main(["retry", "s.yaml"]) == 2 and "at work" in capsys.readouterr().err
    assert main(["retry", "s.yaml"]) == 0 and not earlier.read_text()
    assert capsys.readouterr().out.splitlines()[0] == f"{ids[0]} node_failure"
    left = [(Path("results/s/points") / point / "record.json").exists() for point in ids]
    assert left == [False, True, True]


def test_retry_without_results(tmp_path, capsys):
    assert main(["retry", DEMO, "--results", str(tmp_path / "nowhere")]) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1 and "nowhere/demo: no such folder" in said.err


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert re.fullmatch(r"nightsweep \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_a_wrong_value_is_answered_by_the_nearest_one(tmp_path, capsys):
    file = tmp_path / "s.yaml"
    file.write_text("name: s\nbase: {workload: image, model: resnet5O, layout: sideways}\n")
    assert main(["check", str(file)]) == 2
    near, far = sorted(capsys.readouterr().err.splitlines(), key=lambda line: "layout" in line)
    assert near.endswith("(did you mean 'resnet50'?)") and "did you mean" not in far


def test_missing_data_folders_are_found(tmp_path, capsys):
    file = tmp_path / "s.yaml"
    text = f"name: s\nbase: {{workload: image, model: resnet50, data: {tmp_path}/mnist}}\naxes: {{seed: [0, 1]}}\n"
    file.write_text(text)
    assert main(["check", str(file)]) == 2
    assert capsys.readouterr().err == f"{file}: data: {tmp_path}/mnist: no such folder (2 points)\n"
    (tmp_path / "mnist").mkdir()
    assert main(["check", str(file)]) == 0


def test_orphans_are_listed_and_removed_only_where_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file, results = Path("s.yaml"), Path("results/s")
    text = "name: s\nbase: {workload: image, model: resnet50}\naxes: {seed: [0]}\n"
    file.write_text(text + "presets: {more: {axes: {seed: [1]}}}\n")
    (own,), (preset,) = load(file).points, load(file, "more").points
    old = "0123456789ab"
    for point in (own.id, preset.id, old):
        (results / "points" / point).mkdir(parents=True)
    derive(results, "points-0000", [own.id, preset.id, old], 1)
    before = sorted(results.rglob("*"))
    capsys.readouterr()
    assert main(["orphans", "s.yaml"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == old and sorted(results.rglob("*")) == before
    with take_lock(results):
        assert main(["orphans", "s.yaml", "--remove"]) == 2
        assert "at work" in capsys.readouterr().err and (results / "points" / old).exists()
    assert main(["orphans", "s.yaml", "--remove"]) == 0
    assert not list(results.rglob(f"{old}*"))
    assert Derived(results / "derived").made.keys() == {own.id, preset.id}
    assert set(pl.read_parquet(results / "derived/points-0000/points.parquet")["point_id"]) == {own.id, preset.id}
    assert all((results / "points" / point).exists() for point in (own.id, preset.id))
    assert main(["orphans", "s.yaml", "--results", "nowhere"]) == 2


def test_retry_of_a_broken_sweep(tmp_path, capsys):
    (tmp_path / "s.yaml").write_text("name: s\naxes: {ranks: [1]}\n")
    assert main(["retry", str(tmp_path / "s.yaml")]) == 2
    assert "axes.ranks" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        *("wrap --steps 0 t.py", "wrap --traced-steps -1 t.py", "wrap --steps 2.5 t.py", "diagnose t --ranks 1"),
        *("doctor --nodes 0", "doctor --nodes two"),
    ],
)
def test_a_number_out_of_bounds_is_refused(capsys, words):
    with pytest.raises(SystemExit, match=r"^2$"):
        main(words.split())
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith(" and 1000000") and "is not a whole number between" in line


@pytest.mark.parametrize("interval", ["0", "nan", "two"])
def test_a_time_out_of_bounds_is_refused(capsys, interval):
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["watch", "results", "--interval", interval])
    assert capsys.readouterr().err.endswith(f"{interval} is not a number between 0.1 and 86400\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("doctor --preset smoke", "--preset: expected the --configfile that has it, too"),
        ("doctor --configfile s.yaml", "--configfile: expected the --profile that it will run with, too"),
        (f"publish {ROOT}/data/h100-2026-11-28 --out web", "h100-2026-11-28: is published already; expected results/"),
        (f"publish {ROOT}/data/h100-2026-11-28 --into web", "h100-2026-11-28: is published already; expected results/"),
    ],
)
def test_what_does_not_go_together_gets_a_line(capsys, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2 and not list(tmp_path.iterdir())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"nightsweep {words.split()[0]}: ") and says in line


def test_ctrl_c_ends_a_command_without_a_traceback(monkeypatch, capsys):
    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("nightsweep.analysis.tools.commands.ingest", stop)
    assert main(["ingest", "t", "--out", "o"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_sweep_without_points_has_nothing_to_diagnose(tmp_path, capsys):
    (tmp_path / "sweep.json").write_text('{"name": "s", "points": []}')
    for words in ([], ["--json"]):
        assert main(["diagnose", str(tmp_path), *words]) == 2
        said = (
            f"nightsweep diagnose: {tmp_path}/sweep.json: lists no point; expected those of a sweep that was started\n"
        )
        assert capsys.readouterr() == ("", said)
