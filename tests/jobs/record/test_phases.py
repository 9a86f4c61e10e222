"""Phases of ranks and of launches: which rank decides, what a killed one leaves, what a lost attempt tells."""

import json
import os

import pytest
import torch

from nightsweep.jobs.launch.held import Held
from nightsweep.jobs.record import phases
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.heartbeat import Heartbeat
from nightsweep.jobs.record.json_files import read_lines
from nightsweep.jobs.record.phases import Phase, RankPhase
from nightsweep.jobs.slurm import allocation

S = 10**9


def rank(folder, number, marks, ended=None):
    """What a rank left: (phase, second) and, where its supervisor saw it end, when."""
    lines = [json.dumps({"phase": phase, "start_ns": round(at * S)}) for phase, at in marks]
    folder.rank_file(number, "phases.jsonl").write_text("\n".join(lines) + '\n{"pha')
    if ended is not None:
        exit_ = {"rank": number, "exit_code": None, "signal": 9, "ended_ns": int(ended * S)}
        folder.rank_file(number, "exit.json").write_text(json.dumps(exit_))


def seconds(found):
    return [(phase.phase, phase.start_ns / S) for phase in found]


def test_the_slowest_rank_decides_and_what_comes_twice_counts_twice(tmp_path):
    folder = RunFolder(tmp_path)
    steps = [("warmup", 3), ("compile", 3.5), ("warmup", 6), ("timed", 8)]
    rank(folder, 0, [("import", 1), *steps, ("teardown", 9)], ended=9.5)
    rank(folder, 1, [("import", 2), *((phase, at + 0.2) for phase, at in steps), ("teardown", 9.1)], ended=9.9)
    found = [(phase, at / S) for phase, at in phases.slowest_ranks(folder)]
    assert found == [
        ("import", 2),
        ("warmup", 3.2),
        ("compile", 3.7),
        ("warmup", 6.2),
        ("timed", 8.2),
        ("teardown", 9.1),
    ]


def test_a_killed_rank_leaves_its_phases_and_a_start_has_no_gaps(tmp_path):
    folder = RunFolder(tmp_path / "timed.1")
    folder.path.mkdir()
    rank(folder, 0, [("import", 1.5), ("model", 4), ("timed", 5)], ended=7)
    rank(folder, 1, [("import", 0.5), ("model", 12)])  # of a host whose clock is ahead; it never came further
    found = [Phase(phase="launch", start_ns=0)]
    phases.append_start(found, folder, S, 8 * S, 8 * S, "rank_killed")
    phases.append(found, Phase(phase="record", start_ns=9 * S))
    assert seconds(found) == [
        ("launch", 0), ("start", 1), ("import", 1.5), ("timed", 5), ("teardown", 7), ("model", 8), ("idle", 8),
        ("record", 9),
    ]  # fmt: skip
    assert {phase.reason for phase in found if phase.look} == {"rank_killed"}
    assert {(phase.look, phase.start) for phase in found[1:6]} == {("timed", 1)}
    phases.append_start(found, RunFolder(tmp_path / "traced"), 10 * S, 12 * S, 13 * S, None)
    assert seconds(found)[-3:] == [("start", 10), ("tracing", 12), ("idle", 13)] and found[-2].start == 2


def test_a_compilation_interrupts_the_phase_in_which_it_happens(tmp_path):
    from torch._dynamo import callback  # which takes a second

    heart = Heartbeat(tmp_path / "rank0.heartbeat")
    heart.follow_compiler(callback)
    handler = callback.callback_handler
    try:
        heart.enter("warmup")
        torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(2))
        for block in ("timed", "none", "sampler"):
            heart.enter(block)
    finally:
        handler.start_callbacks.pop()
        handler.end_callbacks.pop()
    lines = read_lines(tmp_path / "rank0.phases.jsonl", RankPhase)
    assert [line.phase for line in lines] == ["warmup", "compile", "warmup", "timed", "control"]
    assert [line.start_ns for line in lines] == sorted(line.start_ns for line in lines)


def test_of_a_lost_attempt_the_last_sign_of_life_is_known(tmp_path):
    assert Held().begin(tmp_path)[0] == 1
    assert phases.last_attempt(tmp_path) == []  # it left nothing
    (tmp_path / "timed.1").mkdir()
    sign = tmp_path / "timed.1/rank0.heartbeat"
    sign.write_text("step 3\n")
    later = sign.stat().st_mtime_ns + 5 * S
    os.utime(sign, ns=(later, later))
    assert [phase.phase for phase in phases.last_attempt(tmp_path)] == ["lost", "end"]
    assert phases.last_attempt(tmp_path)[-1].start_ns == later
    assert Held().begin(tmp_path)[0] == 2
    assert [start.earlier_sign_ns for start in phases.starts_of(tmp_path)] == [None, later]


def test_a_later_point_of_a_process_counts_from_the_end_of_the_one_before(tmp_path, monkeypatch):
    monkeypatch.setattr(allocation, "inside", lambda: True)
    times = {"SubmitTime": 5 * S, "StartTime": 65 * S}
    monkeypatch.setattr(allocation, "times_ns", lambda: times)
    held = Held.arrived()
    _, first = held.begin(tmp_path)
    assert seconds(first)[:2] == [("queue", 5), ("job_start", 65)] and first[2].phase == "launch"
    end = held.conclude(first)[-1]
    _, second = held.begin(tmp_path)
    assert second == [Phase(phase="launch", start_ns=end.start_ns)] and end.phase == "end"


@pytest.mark.parametrize("name", phases.PHASES)
def test_every_phase_has_a_use(name):
    from nightsweep.analysis.tables.phases import USE_OF

    assert name in USE_OF
