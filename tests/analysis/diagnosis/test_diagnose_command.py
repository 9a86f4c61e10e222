"""`nightsweep diagnose` on real runs: its JSON as documented, its text, and one clear line for what cannot be read."""

import errno
import gzip
import json
import re
import shutil
from pathlib import Path

import jsonschema
import polars as pl
import pytest

from nightsweep.analysis.diagnosis import verdict
from nightsweep.analysis.diagnosis.causes.rules import RULES, list_thresholds
from nightsweep.analysis.diagnosis.evidence import sources
from nightsweep.analysis.tools import cli
from tests.analysis.diagnosis.diagnosed import H200, MS, US, Run, written
from tests.analysis.h200 import unpacked
from tests.analysis.readers.test_readers import DATA, REAL
from tests.fakes.ranks import unpack as export

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "analysis/diagnosis/schema.json").read_text())


def diagnosed(capsys, *arguments):
    assert cli.main(["diagnose", *map(str, arguments), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, SCHEMA)
    shares = [cause["share"] for cause in found["causes"]]
    assert shares == sorted(shares, reverse=True)
    if found["parts"]:
        assert sum(found["parts"].values()) == pytest.approx(found["step_ms"], rel=1e-9)
    return found, {cause["kind"]: cause for cause in found["causes"]}


def test_two_ranks_that_launch_too_slowly(capsys, tmp_path):
    """A small model under DDP on two H200s. Rank 0 waits for rank 1 for 4 ms a step, but launches as long, 18 ms."""
    found, causes = diagnosed(capsys, export("ddp-r0", tmp_path), export("ddp-r1", tmp_path))
    assert found["causes"][0]["kind"] == "launch_bound" and found["causes"][0]["share"] > 0.5
    assert found["ranks"] == [0, 1] and found["healthy"] is False
    assert "straggler" not in causes
    assert "missing_counters" in causes and "memory_headroom" not in causes


@pytest.mark.parametrize("name", ["cut.json", "cut.json.gz", "cut.sqlite"])
def test_of_a_trace_that_is_cut_the_text_says_so_first(capsys, tmp_path, name):
    zipped = (DATA / "kineto-h200-ddp-r0.json.gz").read_bytes()
    contents = {"cut.json": gzip.decompress(zipped), "cut.json.gz": zipped}
    whole = contents.get(name) or export("zero3-r0", tmp_path).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) * 7 // 10])
    assert cli.main(["diagnose", str(tmp_path / name)]) == 1
    text = capsys.readouterr().out
    assert text.splitlines()[1].startswith("of a part of the trace alone: ")
    assert text.startswith("no step could be timed") and "1. " not in text and "idle_host" not in text
    assert "copy or export the trace again" in text and "trace all ranks" not in text
    assert text.count(name) == 1 and "SQLite" not in text and "end-of-stream" not in text  # in one line, and once


def test_hooks_of_zero3_on_the_host(capsys, tmp_path):
    found, causes = diagnosed(capsys, export("zero3-r0", tmp_path), export("zero3-r1", tmp_path))
    """Rank 0 comes late, for its host launches for longer: that is the cause, not that the other waits for it."""
    assert found["causes"][0]["kind"] == "launch_bound"
    assert "straggler" not in causes
    assert found["causes"][0]["share_low"] is not None  # of one step: what the method leaves open


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    return unpacked("two-nodes", tmp_path_factory.mktemp("two"))


def test_a_point_s_folder(capsys, two_nodes):
    """FSDP2 over sockets: nine tenths of the step are communication. Without it the host, which launches for 64 of 136
    ms, would hold the step up; for 52 of them without what nsys adds to its 4,938 calls (3.5 us each, as far as nothing
    hides it): 0.62 can be gained. Counters were sampled."""
    found, causes = diagnosed(capsys, two_nodes)
    first = found["causes"][0]
    assert first["kind"] == "exposed_communication" and 0.57 < first["share"] < 0.67
    assert (
        first["share_low"] == pytest.approx(first["share"] / 2, abs=1e-4) and first["share_high"] > first["share"] + 0.1
    )
    assert first["remedy"] == {"reduce_dtype": "bf16"}
    assert found["timed_step_ms"] == pytest.approx(139.5, abs=0.1)
    assert "missing_counters" not in causes and "throttled" not in causes and "gpu_shared" not in causes
    assert causes["memory_headroom"]["remedy"] == {"micro_batch": 32}


def test_remedies_are_points(two_nodes):
    """What is proposed for a point can be run: no constraint refuses it."""
    from nightsweep.jobs.point import check as constraints
    from nightsweep.jobs.point.point import complete

    e = sources.gather([two_nodes])
    remedies = [cause.remedy for cause in verdict.judge(e).causes if cause.remedy]
    assert len(remedies) >= 3
    for remedy in remedies:
        assert constraints.reasons(complete({**e.point.settings(), **remedy})) == []


def test_a_log_beside_bare_traces(capsys, two_nodes):
    trace, log = two_nodes / "traced/trace-r0.sqlite", two_nodes / "traced/nvml-n1.arrow"
    _, without = diagnosed(capsys, trace)
    _, with_log = diagnosed(capsys, trace, "--nvml", log)
    assert "missing_counters" in without and "missing_counters" not in with_log
    assert any("other ranks" in fact["what"] for fact in with_log["missing_trace"]["evidence"])


def test_a_point_without_a_trace_is_neither_healthy_nor_not(capsys, tmp_path):
    found, causes = diagnosed(capsys, unpacked("control", tmp_path))
    assert found["healthy"] is None and found["step_ms"] > 0 and found["parts"] == {}
    assert causes["missing_trace"]["share"] == 0


def test_text_fits_a_screen(capsys, tmp_path):
    assert cli.main(["diagnose", str(export("ddp-r0", tmp_path))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 50 and max(map(len, lines)) <= 120
    assert re.match(r"step [\d.]+ ms \(mean of 2 traced steps of 1 rank\)", lines[0])


def test_kernels_in_a_row_without_ranges_or_counters_are_healthy(tmp_path):
    """400 kernels of 1 ms, 10 us apart, and nothing else in the trace: 1 % idle is nothing to recover."""
    run = Run()
    for number in range(400):
        run.kernel(number * 1010 * US + MS, number * 1010 * US + 2 * MS, "gemm", at=number * 1010 * US + MS - 3 * US)
    device = {"name": H200["name"]}
    found = verdict.judge(sources.gather([written([run], tmp_path, device)]))
    assert found.healthy is True and all(cause.share == 0 for cause in found.causes)
    assert {cause.cause for cause in found.causes} <= {"monitoring"}


@pytest.mark.skipif(not REAL.is_dir(), reason="no public traces here")
@pytest.mark.parametrize(
    ("name", "kind", "share"),
    [
        ("nsys-ai_healthy_1pct.sqlite", None, 0),
        ("nsys-ai_h100_2gpu_1s.sqlite", "memory_pressure", 0.9),  # weights streamed from the host
        ("flameox_nsight-2025.5.2.sqlite", "launch_bound", 0.8),
        ("tracelens_h100_facebook_timesformer-base-finetuned-k400.json.gz", "loader_wait", 0.5),
        (
            "tracelens_h100_Qwen_Qwen1.5-0.5B-Chat.json.gz",
            "recompute_or_unfused",
            0.1,
        ),  # what the host leaves of it, which launches no faster
    ],
)
def test_public_traces(capsys, name, kind, share):
    found, causes = diagnosed(capsys, REAL / name)
    material = [cause for cause in found["causes"] if cause["share"] > 0]
    assert "missing_counters" in causes
    if kind is None:
        assert material == [] and found["healthy"] is True
    else:
        assert material[0]["kind"] == kind and material[0]["share"] > share and found["healthy"] is False
    if "2gpu" not in name:
        assert not [cause for cause in found["causes"] if cause["cause"] == "communication"]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda folder: [folder / "none.sqlite"], "none.sqlite: is not there; a trace, a folder of tables, or a point"),
        (lambda folder: [text(folder)], "words.json: "),
        (lambda folder: [tables_of(folder), "--nvml", folder / "none.arrow"], "none.arrow: is not there; a log of the"),
        (lambda folder: [point(folder), text(folder)], "is a whole run; one run at a time was expected"),
        (lambda folder: [tables_of(folder), "--nvml", text(folder)], "words.json: not an NVML log"),
    ],
)
def test_one_line_for_what_cannot_be_diagnosed(capsys, tmp_path, make, told):
    assert cli.main(["diagnose", *map(str, make(tmp_path))]) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1
    assert said.err.startswith("nightsweep diagnose: ") and told in said.err


def text(folder):
    path = folder / "words.json"
    path.write_text("no trace")
    return path


def point(folder):
    (folder / "point.json").write_text("{}")
    return folder


def tables_of(folder):
    run = Run()
    run.kernel(MS, 2 * MS)
    return written([run], folder / "tables")


def test_a_trace_of_a_cpu_is_told(capsys, tmp_path):
    trace = tmp_path / "kineto-cpu-r0.json.gz"
    trace.write_bytes((DATA / "kineto-cpu-r0.json.gz").read_bytes())
    found, causes = diagnosed(capsys, trace)
    assert found["healthy"] is None and found["step_ms"] == pytest.approx(sum(found["parts"].values()))
    assert found["steps"] == 2 and found["ranks"] == [0]
    assert causes["missing_trace"]["evidence"][0]["value"] == "no activity of a GPU in it"


def test_every_kind_of_the_task_has_a_rule():
    kinds = {rule.kind for rule in RULES}
    assert kinds >= {
        "launch_bound", "small_batch", "host_sync", "loader_wait", "cpu_preprocessing", "h2d_pageable", "h2d_exposed",
        "tensor_cores_unused", "low_occupancy", "layout_transposes", "recompute_or_unfused", "allocator_churn",
        "memory_headroom", "memory_pressure", "exposed_communication", "small_messages", "slow_interconnect",
        "straggler", "gpu_shared", "throttled", "numa_far", "missing_trace", "missing_counters",
    }  # fmt: skip
    causes = SCHEMA["properties"]["causes"]["items"]["properties"]["cause"]["enum"]
    assert {rule.cause for rule in RULES} == set(causes) and all(rule.text for rule in RULES)


def test_every_threshold_is_used():
    code = "".join(path.read_text() for path in (ROOT / "analysis/diagnosis").rglob("*.py"))
    assert [name for name in list_thresholds() if f"{name.upper()}.value" not in code] == []


def test_a_folder_of_traces_is_none(tmp_path, capsys):
    trace = shutil.copy(DATA / "kineto-h200-ddp-r0.json.gz", tmp_path)
    for command in (["diagnose"], ["ingest", "--out", str(tmp_path / "out")]):
        assert cli.main([*command, str(tmp_path)]) == 2
        said = f"{tmp_path}: a folder of traces; the traces were expected, such as {trace}\n"
        assert capsys.readouterr().err == f"nightsweep {command[0]}: {said}"
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["trace.json.gz", "trace.sqlite"])
def test_a_trace_that_must_not_be_read_is_called_so(name, tmp_path, monkeypatch, capsys):
    """As whoever may read all cannot see it in a file's mode."""
    trace, opened = tmp_path / name, Path.open
    trace.touch()

    def refuse(path, *args, **options):
        if path == trace:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *args, **options)

    monkeypatch.setattr(Path, "open", refuse)
    assert cli.main(["diagnose", str(trace)]) == 2
    assert capsys.readouterr().err == f"nightsweep diagnose: {trace}: Permission denied\n"


def test_tables_of_another_version_are_called_so(tmp_path, capsys):
    folder = str(tmp_path)
    assert cli.main(["ingest", str(DATA / "kineto-h200-ddp-r0.json.gz"), "--out", folder]) == 0
    kernels = tmp_path / "kernels.parquet"
    pl.read_parquet(kernels).drop("blocks", "waves").write_parquet(kernels)
    for command in (["diagnose"], ["compare", folder], ["export", "--to", "perfetto", "--out", folder + "/w.json"]):
        assert cli.main([*command, folder]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"nightsweep {command[0]}: {kernels}: has no blocks and no waves; expected the columns")
