"""Kineto traces that are cut, broken or large: all that is readable is read, and memory stays small."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from nightsweep.analysis.readers.kineto import reader as kineto
from nightsweep.analysis.readers.kineto import stream
from tests.analysis.readers.test_kineto import event, write


def operators(count):
    return [event("cpu_op", f"aten::op{i}", i) for i in range(count)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace-r0.json"


def names(trace):
    return trace.events["operators"]["name"].to_list()


def test_a_cut_file_gives_what_is_before_the_cut(path):
    text = write(path, operators(500)).read_bytes()
    inside, between, after = text.index(b"op400"), text.index(b'{"ph"', text.index(b"op399")), text.rindex(b"]") + 1
    for at, count in ((inside, 400), (between, 400), (after, 500), (len(text) - 1, 500)):
        path.write_bytes(text[:at])
        trace = kineto.read(path)
        assert names(trace) == [f"aten::op{i}" for i in range(count)], at
        assert any("cut off" in problem for problem in trace.problems)


def test_a_cut_or_damaged_gzip_gives_what_is_before_it(path):
    packed = gzip.compress(write(path, operators(5000)).read_bytes())
    for damaged in (packed[: len(packed) // 2], packed[: len(packed) // 2] + b"\0" * 100 + packed[len(packed) // 2 :]):
        path.write_bytes(damaged)
        trace = kineto.read(path)
        assert 100 < len(names(trace)) < 5000
        assert any("damaged" in problem for problem in trace.problems) and all("\n" not in p for p in trace.problems)
    path.write_bytes(packed[:-8])  # only the checksum is missing
    assert len(names(kineto.read(path))) == 5000


def test_gzip_is_recognised_by_its_content(path):
    content = write(path, operators(3)).read_bytes()
    path.write_bytes(gzip.compress(content))
    plain = path.with_suffix(".json.gz")
    plain.write_bytes(content)
    assert names(kineto.read(path)) == names(kineto.read(plain)) == ["aten::op0", "aten::op1", "aten::op2"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"  \n", "it is no JSON object"),
        (b"no trace", "it is no JSON object"),
        (b"[]", "it is no JSON object"),
        (b'{"a": 1}', "it has no list traceEvents"),
        (b'{"traceEvents": {}}', "it has no list traceEvents"),
        (b'{"a": {"traceEvents": []}}', "it has no list traceEvents"),
        (b'{"a": "\\"traceEvents\\": ["}', "it has no list traceEvents"),
        (b"\x1f\x8b\x08", "it is empty; the file ends early or is damaged"),
    ],
)
def test_what_is_no_trace_says_why_in_one_line(path, content, why):
    path.write_bytes(content)
    with pytest.raises(ValueError) as error:
        kineto.read(path)
    assert str(error.value).startswith(f"{path}: not a Kineto trace: {why}") and "\n" not in str(error.value)
    assert str(error.value).endswith("a JSON object with a list traceEvents was expected")


def test_a_file_that_the_system_does_not_let_read_is_not_called_damaged():
    with pytest.raises(ValueError, match=r"it is empty; the file cannot be read to its end: Input/output error; "):
        kineto.read(Path("/proc/self/mem"))


def test_a_file_that_is_not_there(path):
    with pytest.raises(ValueError, match=r"trace-r0\.json: no such file"):
        kineto.read(path)


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000])
@pytest.mark.parametrize("count", [1, 3000])
def test_an_event_within_too_many_brackets_is_left_out(path, deep, count):
    text = write(path, operators(count)).read_text()
    at = text.index("{", text.index("aten::op0"))
    path.write_text(f'{text[:at]}{{"ph": "X", "args": {deep}}}, {text[at:]}')
    trace = kineto.read(path)
    assert trace.problems and len(names(trace)) <= count


def test_odd_events_survive_and_lost_ones_are_counted(path):
    odd = [
        '{"ph": "X", "cat": "kernel", "name": "bare", "pid": 0, "tid": 7, "ts": 1, "dur": 1}',
        '{"ph": "X", "cat": "kernel", "name": null, "pid": null, "tid": "x", "ts": "2.5", "dur": "1", "args": null}',
        event("kernel", "text", 3, device="0", stream="7", correlation="12", grid=["2", 1, 1], block="?"),
        event("kernel", "wrong", 4, device=[], stream={}, correlation=1e300, grid=[None], block=[1, 2]),
        '{"ph": "X", "cat": "kernel", "name": "list", "ts": 5, "dur": 1, "args": [1]}',
        event("kernel", "nan", 6, device=float("nan"), correlation=4),
        event("kernel", "negative", 7, dur="-1"),
        event("kernel", "timeless", '"\xe9"'),
        '{"ph": "X", "cat": "kernel", "name": "endless", "ts": 8}',
        '{"ph": "X", "cat": ["kernel"], "name": "cat", "ts": 9, "dur": 1}',
        "17",
        '{"ph": "X" "cat": "kernel", "name": "comma", "ts": 10, "dur": 1}',
        event("kernel", "last \t \\u00e9", 11, correlation=3).replace("\\t", "\t"),
    ]
    trace = kineto.read(write(path, odd))
    kernels = trace.events["kernels"]
    assert kernels["name"].to_list() == ["bare", None, "text", "wrong", "list", "nan", "last \t \\u00e9"]
    assert kernels.select("device", "stream", "correlation", "blocks", "threads").row(2) == (0, 7, 12, 2, None)
    assert kernels["correlation"].to_list() == [None, None, 12, None, None, 4, 3]
    assert trace.problems == (
        "events that could not be read and are left out: 3",
        "kernels: events without a start or with no or a negative duration, left out: 3",
    )


def test_names_may_look_like_json_and_be_broken_utf8(path):
    tricky = ['}, {"ph": "X"}]', '"traceEvents": [', "\\", "é", "日本"]
    content = write(path, [event("cpu_op", name, i) for i, name in enumerate(tricky)]).read_bytes()
    path.write_bytes(content.replace(json.dumps("é").encode(), b'"\xe9\xff"'))
    assert names(kineto.read(path)) == [*tricky[:3], "\ufffd\ufffd", tricky[4]]


@pytest.mark.parametrize("block", [100, 1000, 5000, 100_000])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_blocks_of_any_size_give_the_same_events(path, monkeypatch, block, separators):
    nested = {"a": [{"b": 1}, {"c": [{}, {}]}], "s": '}, {"', "correlation": 4}
    calls = [json.loads(event("cuda_runtime", f"call {i}", i, **nested)) for i in range(300)]
    groups = [{"pg_name": str(i)} for i in range(500)]
    trace = {"traceEvents": calls, "distributedInfo": {"rank": 5, "pg_config": groups}, "baseTimeNanoseconds": 0}
    path.write_text(json.dumps(trace, separators=separators))
    for name, value in {"_PIECE": block, "_BLOCK": block, "_STEP": block // 4, "_LONGEST": 2000}.items():
        monkeypatch.setattr(stream, name, value)
    found = kineto.read(path)
    assert found.problems == () and found.events["runtime"]["name"].to_list() == [e["name"] for e in calls]
    assert found.events["runtime"]["rank"].unique().to_list() == [5]


def test_events_are_decoded_by_the_block_wherever_a_chunk_ends(path, monkeypatch):
    write(path, operators(4000))
    alone = []
    monkeypatch.setattr(stream.Document, "_event", lambda self, text: alone.append(text) or [])
    for block in range(20_000, 20_200):  # an event and what is between two of them are shorter than this range
        for name, value in {"_PIECE": block, "_BLOCK": block, "_STEP": 1000}.items():
            monkeypatch.setattr(stream, name, value)
        alone.clear()
        list(stream.Document(path).blocks())
        assert len(alone) < 400, block


BOMBS = {
    "an event": ('{"traceEvents": [{"a": "', "a", "within"),
    "a list": ('{"traceEvents": [[', "1,", "within"),
    "lists": ('{"traceEvents": [', "[],", "within"),
    "brackets": ('{"traceEvents": [', "[", "within"),
    "what follows": ('{"traceEvents": [], "a": "', "a", "after"),
}


def peak_kib(path):
    """The most memory that a process takes which reads this trace, and what the reader says of it. It has a minute of a
    core, however long that takes on a loaded machine."""
    code = f"""
import pathlib, resource
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from nightsweep.analysis.readers.kineto import reader
print(reader.read(pathlib.Path({str(path)!r})).problems)
print(pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    problems, peak = done.stdout.splitlines()
    return int(peak), problems


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_file_of_much_text_takes_little_memory_and_time(path, bomb):
    head, fill, where = BOMBS[bomb]
    path.write_bytes(gzip.compress(head.encode()) + 300 * gzip.compress(fill.encode() * ((1 << 20) // len(fill))))
    peak, problems = peak_kib(path)
    assert path.stat().st_size < 2e6 and f"the trace is cut off {where} its events" in problems
    assert peak < 350_000


@pytest.mark.slow
def test_memory_does_not_grow_with_what_is_not_read(path):
    unread = event("python_function", "f" * 200, 1, stack="x" * 300)
    limits = []
    for count in (1000, 150_000):
        write(path, [*operators(10), *[unread] * count])
        limits.append(peak_kib(path)[0])
    assert path.stat().st_size > 90e6
    assert limits[1] - limits[0] < 70_000  # KiB: some blocks, not the file
