"""The journal of what was submitted."""

import os

import pytest
from snakemake_executor_plugin_submitit.journal import Journal


def test_journal(tmp_path):
    first = Journal(tmp_path)
    first.intend("x", ["a", "b"], [0, 0])
    first.accept("x", ["7_0", "7_1"])
    first.end("a", "x")
    first.intend("y", ["c"], [1])
    first.intend("z", ["d"], [0])
    first.refuse("z")
    with (first.folder / "journal.jsonl").open("a") as sink:
        sink.write('{"event": "en')  # killed while it wrote
    found = Journal(tmp_path).load_unfinished()
    assert set(found) == {"b", "c"}
    assert (found["b"].job_id, found["b"].index, found["b"].size) == ("7_1", 1, 2)
    assert found["c"].job_id is None and found["c"].losses == 1 and found["c"].name == "y"


def test_an_answer_whose_intention_a_full_disk_cut(tmp_path):
    first = Journal(tmp_path)
    first.intend("x", ["a"], [0])
    first.accept("x", ["7"])
    first.accept("cut", ["8"])
    assert Journal(tmp_path).load_unfinished()["a"].job_id == "7"


@pytest.mark.parametrize("times", [range(1, 99), range(99, 1, -1)], ids=["one-clock", "each-behind-the-one-before"])
def test_drivers_that_follow_each_other_on_hosts_whose_clocks_differ(tmp_path, monkeypatch, times):
    """The job that the third one sent runs: a fourth one is not to send it again, nor to look for what has ended."""
    clock = iter(times)
    monkeypatch.setattr("time.time_ns", lambda: next(clock))
    first = Journal(tmp_path)
    first.intend("x", ["a", "b"], [0, 0])
    first.accept("x", ["7_0", "7_1"])
    second = Journal(tmp_path)
    second.end("a", "x")
    assert set(Journal(tmp_path).load_unfinished()) == {"b"}
    third = Journal(tmp_path)
    third.intend("y", ["a"], [0])
    third.accept("y", ["8"])
    assert {key: entry.job_id for key, entry in Journal(tmp_path).load_unfinished().items()} == {"a": "8", "b": "7_1"}
    for _ in range(8):
        Journal(tmp_path).end("b", "x")
    Journal(tmp_path).intend("z", ["b"], [1])  # the eleventh driver: numbers are no words
    assert Journal(tmp_path).load_unfinished()["b"].name == "z"


def test_the_end_of_an_earlier_job_is_not_that_of_the_one_that_another_driver_sent_since(tmp_path):
    first, second = Journal(tmp_path), Journal(tmp_path)
    first.intend("x", ["a"], [0])
    second.end("a", "x")  # it found the output, which someone then removed
    first.end("a", "x")
    first.intend("y", ["a"], [0])
    first.accept("y", ["8"])
    assert Journal(tmp_path).load_unfinished()["a"].job_id == "8"
    first.end("a", "")
    assert Journal(tmp_path).load_unfinished() == {}


def test_what_a_driver_began_to_cancel_is_not_taken_over(tmp_path):
    first = Journal(tmp_path)
    first.intend("x", ["a"], [0])
    first.accept("x", ["7"])
    first.stop({"x"})  # and killed
    second = Journal(tmp_path)
    assert second.load_unfinished() == {} and second.stopped == {"x"}
    second.cancelled(second.stopped)
    second.intend("y", ["a"], [0])
    third = Journal(tmp_path)
    assert set(third.load_unfinished()) == {"a"} and second.stopped == third.stopped == set()


def test_a_line_that_a_full_disk_cut_takes_no_other_with_it(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    journal.intend("x", ["a"], [0])

    def cut(event):
        with (journal.folder / "journal.jsonl").open("a") as sink:
            sink.write('{"event": "acc')
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full, pytest.raises(OSError, match="No space"):
        full.setattr("json.dumps", cut)
        journal.accept("x", ["7"])
    journal.accept("x", ["7"])
    assert Journal(tmp_path).load_unfinished()["a"].job_id == "7"


@pytest.mark.parametrize("names", ["mn", "nm"])
def test_journals_without_numbers_are_read_in_the_order_of_their_times(tmp_path, names):
    events = '{"event": "intend", "name": "x", "keys": ["k"], "losses": [0]}', '{"event": "end", "key": "k"}'
    for at, (name, event) in enumerate(zip(names, events, strict=True)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal.jsonl").write_text(event)
        os.utime(tmp_path / name / "journal.jsonl", (at, at))
    assert Journal(tmp_path).load_unfinished() == {}


def test_old_journals_without_open_ends_are_removed(tmp_path):
    first, second = Journal(tmp_path), Journal(tmp_path)
    for journal in (first, second):
        journal.intend("x", ["a"], [0])
        journal.end("a", "x")
    os.utime(first.folder / "journal.jsonl", (0, 0))
    assert Journal(tmp_path).load_unfinished() == {}
    assert not first.folder.exists() and second.folder.exists()
