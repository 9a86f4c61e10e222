"""Scripts that are hard to watch: each has its record, and one clear line."""

import gzip
import json
import sys

import pytest

from nightsweep.jobs.sweep import code
from tests.jobs.hook.script_run import LOOP, launch, result, script, steps

pytestmark = pytest.mark.slow

CALLS = """
import nightsweep, time
def step():
    time.sleep(0.01)
    nightsweep.step()
"""
"""The same without torch, which takes two seconds of a core to load, where nothing depends on it."""
FAILURES = {
    "raises": (
        CALLS + "\nfor n in range(99):\n    step()\n    assert n < 8, 'too far'",  # enough of them to be timed
        "rank_exception",
        "rank 0: AssertionError: too far",
    ),
    "raises before torch": ("raise ValueError('bad\\nargument')", "rank_exception", "rank 0: ValueError: bad"),
    "runs out of memory": (
        "class OutOfMemoryError(Exception): pass\nraise OutOfMemoryError('CUDA out of memory')",
        "gpu_out_of_memory",
        "rank 0: OutOfMemoryError: CUDA out of memory",
    ),
    "exits": (
        "import sys\nprint('no licence')\nsys.exit(3)",
        "rank_exit",
        "rank 0 ended with code 3 in start, without a traceback; its last line: no licence",
    ),
    "fails in a spawned process": (
        "import torch.multiprocessing as mp\ndef fail(rank): raise ValueError('bad shard')\n"
        "if __name__ == '__main__': mp.spawn(fail)",
        "rank_exception",
        "rank 0: ProcessRaisedException: ValueError: bad shard",
    ),
    "is killed": (
        CALLS + "\nimport os\nfor n in range(9): step()\nos.kill(os.getpid(), 9)",
        "rank_killed",
        "rank 0 died of signal 9 (SIGKILL) in ",
    ),
    "is no Python": ("def", "rank_exception", "SyntaxError"),
    "ends well where it is ended": (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\ntime.sleep(60)",
        "stalled",
        "no rank moved for 6 s: start: rank 0",
    ),
}


@pytest.mark.parametrize(("text", "reason", "words"), FAILURES.values(), ids=FAILURES)
def test_a_script_that_fails_says_why(tmp_path, text, reason, words):
    record, _ = launch(tmp_path, **script(tmp_path, text), traced_steps=3, stall_s=6 if reason == "stalled" else 60)
    assert (record["status"], record["reason"]) == ("failed", reason)
    assert words in record["message"] and "\n" not in record["message"]


def test_a_rank_that_fails_under_torchrun_is_the_one_named(tmp_path):
    text = CALLS + "\nimport os\nfor n in range(9): step()\nassert os.environ['RANK'] == '0'\ntime.sleep(60)"
    settings = script(tmp_path, text) | {"launcher": "torchrun", "ranks_per_node": 2, "timed_steps": 90}
    record, folder = launch(tmp_path, **settings)
    assert (record["reason"], record["failure"]["rank"]) == ("rank_exception", 1)
    assert record["message"] == "rank 1: AssertionError: "
    assert "assert os.environ" in (folder / record["failure"]["tracebacks"]["first_failed"]).read_text()


def test_a_script_that_hangs_is_ended_with_its_stacks_though_it_heeds_no_signal(tmp_path):
    text = (
        CALLS
        + """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def wait_for_ever():
    while True:
        time.sleep(1)
for n in range(9):
    step()
wait_for_ever()
"""
    )
    record, folder = launch(tmp_path, **script(tmp_path, text), stall_s=30)
    assert record["reason"] == "stalled" and "no rank moved for 30 s: " in record["message"]
    assert "wait_for_ever" in (folder / "timed/rank0.stacks.txt").read_text()


WHOLE = {
    "has no steps": ("import time\ntime.sleep(0.5)", "no steps were found in the script: timed as a whole"),
    "has too few": (CALLS + "\nfor n in range(4): step()", "the script's 4 steps were too few: timed as a whole"),
    "has too few, and no usual end": (
        CALLS + "\nfor n in range(4): step()\nimport os\nos._exit(0)",
        "the script ended before its steps were enough, and not as Python ends (os._exit): timed as a whole",
    ),
    "cannot be watched": (
        CALLS + "\nimport sys\nfor n in range(6): step()\n"
        "sys.modules['nightsweep_jobs.hook.install'].WATCH._event = None\nfor n in range(20): step()",
        "steps are no longer watched: TypeError: 'NoneType' object is not callable: timed as a whole",
    ),
    "prints binary": (
        "import os\nos.write(1, bytes(range(256)))",
        "no steps were found in the script: timed as a whole",
    ),
    "goes elsewhere": ("import os\nos.chdir('/')", "no steps were found in the script: timed as a whole"),
}


@pytest.mark.parametrize(("text", "note"), WHOLE.values(), ids=WHOLE)
def test_a_script_without_steps_is_timed_as_a_whole(tmp_path, text, note):
    record, folder = launch(tmp_path, **script(tmp_path, text), traced_steps=2)
    assert record["status"] == "ok"
    found, lines = result(folder), steps(folder)
    assert (found["step_source"], found["notes"], len(lines)) == ("whole run", [note], 1)
    assert record["looks"]["traced"]["status"] == "skipped"
    assert "for want of steps" in record["tracer"]["reason"]


def test_a_rank_that_cannot_be_watched_among_others_is_told(tmp_path):
    blind = "sys.modules['nightsweep_jobs.hook.install'].WATCH._event = None"
    text = f"{CALLS}\nimport os, sys\nif os.environ['RANK'] == '1':\n    {blind}\nfor n in range(20): step()"
    settings = script(tmp_path, text) | {"launcher": "srun", "ranks_per_node": 2}
    record, _ = launch(tmp_path, **settings)
    assert record["status"] == "ok"
    assert record["message"] == "steps are no longer watched: TypeError: 'NoneType' object is not callable"


@pytest.mark.parametrize(
    ("loop", "marks", "timed", "notes"),
    [(CALLS, 9, 5, ["the script ended after 5 of 10 steps"]), (LOOP, 15, 10, [])],
    ids=["timed", "traced"],
)
def test_a_script_that_ends_before_its_traced_steps_is_timed_all_the_same(tmp_path, loop, marks, timed, notes):
    record, folder = launch(tmp_path, **script(tmp_path, loop + f"\nfor n in range({marks}): step()"), traced_steps=3)
    assert (record["status"], len(steps(folder)), result(folder)["notes"]) == ("ok", timed, notes)
    assert record["looks"]["traced"]["status"] == "skipped"
    assert record["tracer"] == {"used": None, "reason": "the script ended before its traced steps"}
    assert not (folder / "traced").exists()


def test_a_script_that_fails_in_its_traced_steps_leaves_the_timed_ones(tmp_path):
    """Its weights are none from its eighth step on, which its rank says as well."""
    lost = "\nwith torch.no_grad(): model.weight.fill_(float('nan'))"
    text = LOOP + f"\nfor n in range(7): step(){lost}\nfor n in range(8): step()\nraise RuntimeError('all gone')"
    record, folder = launch(tmp_path, **script(tmp_path, text), traced_steps=3)
    assert (record["status"], len(steps(folder)), record["looks"]["timed"]["status"]) == ("ok", 10, "ok")
    assert result(folder)["notes"] == ["the script's loss is nan in its last step"]
    traced = record["looks"]["traced"]
    assert (traced["status"], traced["reason"], record["failure"]["look"]) == ("failed", "rank_exception", "traced")
    assert traced["message"] == "rank 0: RuntimeError: all gone"
    with gzip.open(folder / "traced/trace-r0.json.gz") as trace:
        ranges = {event.get("name") for event in json.load(trace)["traceEvents"]}
    assert {name for name in ranges if "step 1" in str(name)} == {"step 13"}, "the next one did not end"
    assert "all gone" in (folder / record["failure"]["tracebacks"]["first_failed"]).read_text()


def test_what_to_do_about_steps_that_are_not_found_is_said(tmp_path):
    text = "import time\nwhile True: print('on', flush=True), time.sleep(0.1)"
    record, _ = launch(tmp_path, timeout_s=8, **script(tmp_path, text))
    assert record["message"].startswith("still running after 8 s; no step was found in the script: `nightsweep.step()`")


def test_a_python_without_the_hook_is_said_to_be_so(tmp_path):
    settings = script(tmp_path, "import time\nfor n in range(9): time.sleep(0.01)") | {"python": f"{sys.executable} -I"}
    _, folder = launch(tmp_path, **settings)
    (note,) = result(folder)["notes"]
    assert note.startswith("no Python with Nightsweep's hook ran (none did") and note.endswith(": timed as a whole")


def test_a_script_that_runs_to_its_end_may_write_where_it_is_told_to(tmp_path):
    """Also when another rank has ended, which took the folder of all with it."""
    text = (
        CALLS
        + f"""
import os, pathlib, sys, time
for n in range(30): step()
out = pathlib.Path(sys.argv[1])
while os.environ["RANK"] == "0" and not (out.parent / "rank1.exit.json").exists():
    time.sleep(0.1)
(out / os.environ["RANK"]).write_text("x")
pathlib.Path("{tmp_path}/seen").write_text(str(out))
"""
    )
    settings = script(tmp_path, text) | {"command": "script.py {out}", "run_to_end": True}
    record, folder = launch(tmp_path, **settings | {"launcher": "srun", "ranks_per_node": 2})
    assert (record["status"], record["message"], len(steps(folder))) == ("ok", None, 10)
    assert (tmp_path / "seen").read_text() == str(folder / "timed.1/out")
    assert not (folder / "timed/out").exists()


HOSTILE = """a b;touch /tmp/x|&$(id)`id`'"\\*?[]{}()<>!#~%\t$HOME"""


def test_a_search_path_of_the_point_s_own_keeps_the_hook(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/mine.py").write_text("STEPS = 40")
    more = script(tmp_path, "import mine\n" + CALLS + "\nfor n in range(mine.STEPS): step()")
    record, folder = launch(tmp_path, **more, **{"env.PYTHONPATH": str(tmp_path / "own")})
    assert record["status"] == "ok" and result(folder)["step_source"] == "call" and len(steps(folder)) == 10


def test_values_reach_the_script_as_they_are(tmp_path):
    text = """
import json, os, sys, yaml
seen = {"argv": sys.argv[1:-1], "env": os.environ["VALUE"], "config": yaml.safe_load(open(sys.argv[-1]))}
open("seen.json", "w").write(json.dumps(seen))
"""
    (tmp_path / "train.yaml").write_text("model: {size: 3, name: tiny}\nlist: [1, {deep: 2}]\n")
    settings = script(tmp_path, text) | {
        "command": "script.py --a '{hostile}' x{hostile}y {nothing} {empty} {truth} {{literal}} {config_file}",
        "config_file": "train.yaml",
        "hostile": HOSTILE,
        "nothing": None,
        "empty": "",
        "truth": True,
        "env.VALUE": HOSTILE,
        "config.model.name": HOSTILE,
        "config.list.1.deep": 0.5,
    }
    record, _ = launch(tmp_path, **settings)
    assert record["status"] == "ok"
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["argv"] == ["--a", HOSTILE, f"x{HOSTILE}y", "", "true", "{literal}"]
    assert seen["env"] == HOSTILE
    assert seen["config"] == {"model": {"size": 3, "name": HOSTILE}, "list": [1, {"deep": 0.5}]}
    assert (tmp_path / "train.yaml").read_text().startswith("model: {size: 3, name: tiny}")


REFUSED = {
    "no such key": ({"config_file": "train.json", "config.size": 1}, "train.json: has no key size"),
    "an option that torchrun does not know": (
        {"launcher": "torchrun", "launcher_options": "--nowhere"},
        "ranks ended without saying how; the last line of their log: ",
    ),
    "no such program": ({"command": "./nowhere {config_file}"}, "./nowhere: No such file or directory"),
}


@pytest.mark.parametrize(("more", "words"), REFUSED.values(), ids=REFUSED)
def test_a_script_that_cannot_be_started_says_why(tmp_path, more, words):
    (tmp_path / "train.json").write_text('{"name": "x"}')
    settings = script(tmp_path, "") | {"command": "script.py {config_file}", "config_file": "train.json"} | more
    record, _ = launch(tmp_path, **settings)
    assert (record["status"], record["reason"]) == ("failed", "launch_failed")
    assert words in record["message"]


def test_a_script_that_changed_since_the_sweep_was_read_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(code, "with_code", lambda point: point)
    record, _ = launch(tmp_path, **script(tmp_path, "x = 1"), code="0" * 12)
    assert record["reason"] == "launch_failed" and "changed since the sweep was read" in record["message"]
