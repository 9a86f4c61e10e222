"""Where steps of a script are found, where it has several things that could be steps."""

from bisect import bisect
from itertools import pairwise
from statistics import median

import pytest

from tests.jobs.hook.script_run import LOOP, OPTIMIZER, launch, result, script, steps

pytestmark = pytest.mark.slow

UPDATE = """
import torch
model = torch.nn.Linear(16, 4)
def step():
    model(torch.randn(8, 16)).sum().backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= 0.01 * weight.grad
            weight.grad = None
"""
"""The same without an optimizer."""
SOURCES = {
    "its own calls": (LOOP + "\nimport nightsweep\nwhile True:\n    step()\n    step()\n    nightsweep.step()", "call"),
    "its profiler": (
        UPDATE
        + """
from torch.profiler import profile, schedule
with profile(schedule=schedule(wait=1, warmup=1, active=3)) as profiler:
    for n in range(8):
        step()
        step()
        profiler.step()
    print(profiler.key_averages().table())
    while True:
        step()
        step()
        profiler.step()
""",
        "profiler",
    ),
    "its NVTX ranges": (
        UPDATE
        + """
import contextlib
for n in range(99):
    with contextlib.suppress(RuntimeError):  # where torch is built without CUDA
        torch.cuda.nvtx.range_push(f"iteration {n}")
    with contextlib.suppress(RuntimeError):
        torch.cuda.nvtx.range_push("forward 1")
    step()
    step()
""",
        "range",
    ),
    "its optimizer, where a few steps are profiled": (
        LOOP
        + """
from torch.profiler import profile
with profile() as profiler:
    for n in range(3):
        step()
        profiler.step()
profiler.export_memory_timeline("nowhere/memory.json")
while True:
    step()
""",
        "optimizer",
    ),
    "a step that calls another class's": (
        LOOP
        + """
class Own(Descent):
    def step(self):
        return super().step()
optimizer = Own(model.parameters(), lr=0.01)
Descent(model.parameters(), lr=0.01)
while True:
    step()
""",
        "optimizer",
    ),
    "the first of many optimizers, each of a weight": (
        LOOP
        + """
own = [Descent([torch.ones(1, requires_grad=True)], lr=0.1) for n in range(50)]
while True:
    step()
    for each in own:
        each.step()
""",
        "optimizer",
    ),
    "the first of two optimizers": (
        LOOP + "\nother = Descent(model.parameters(), lr=0.1)\nwhile True:\n    step()\n    other.step()\n",
        "optimizer",
    ),
}


@pytest.mark.parametrize(("text", "source"), SOURCES.values(), ids=SOURCES)
def test_the_best_source_of_steps_counts(tmp_path, text, source):
    record, folder = launch(tmp_path, **script(tmp_path, text))
    assert record["status"] == "ok"
    assert result(folder)["step_source"] == source
    assert result(folder)["passes"] == (1 if source == "optimizer" else 2)
    assert not any("another optimizer" in note for note in result(folder)["notes"])


PHASES = {
    "another that is made later": "optimizer = Descent(model.parameters(), lr=0.01)",
    "one that was there before": "optimizer = other",
}


@pytest.mark.parametrize("then", PHASES.values(), ids=PHASES)
def test_another_optimizer_leads_where_the_first_is_done(tmp_path, then):
    """In the timed steps: the first takes 8, of which 3 warm up. Those of another phase are not timed with it."""
    both = "\nother = Descent(model.parameters(), lr=0.01)\nfor n in range(8): time.sleep(0.05), step()\n"
    record, folder = launch(
        tmp_path, **script(tmp_path, f"import time{LOOP}{both}first = optimizer\n{then}\nwhile True: step()")
    )
    assert (record["status"], record["message"], len(steps(folder))) == ("ok", None, 10)
    assert result(folder)["notes"] == ["the script went on with another optimizer"]
    assert result(folder)["passes"] == 1 and median(s["end_ns"] - s["start_ns"] for s in steps(folder)) < 2e7
    assert all(0 < b["start_ns"] - a["end_ns"] + 1 < 1e6 for a, b in pairwise(steps(folder)))


def test_optimizers_of_which_each_takes_few_steps(tmp_path):
    """Fewer than warm up."""
    rounds = "\nwhile True:\n    optimizer = Descent(model.parameters(), lr=0.01)\n    for n in range(3): step()\n"
    record, folder = launch(tmp_path, **script(tmp_path, LOOP + rounds), timed_steps=40, warmup_steps=5)
    assert (record["status"], len(steps(folder))) == ("ok", 40)


def test_of_trainings_in_a_process_each_the_first_counts(tmp_path):
    settings = script(
        tmp_path, "import subprocess, sys\nfor wait in '19': subprocess.run([sys.executable, 'one.py', wait])"
    )
    one = "import nightsweep, sys, time\nfor n in range(14): time.sleep(int(sys.argv[1]) / 100), nightsweep.step()"
    (tmp_path / "one.py").write_text(one)
    record, folder = launch(tmp_path, **settings)
    assert record["status"] == "ok" and all(s["end_ns"] - s["start_ns"] < 8e7 for s in steps(folder))


def test_a_few_steps_before_another_process_trains_are_not_what_counts(tmp_path):
    text = """
import multiprocessing, sys, time
def train(steps):
    import nightsweep
    for n in range(steps): time.sleep(0.01), nightsweep.step()
if __name__ == "__main__":
    train(2)
    rank = multiprocessing.get_context("spawn").Process(target=train, args=(500,))
    rank.start(), rank.join()
"""
    record, folder = launch(tmp_path, **script(tmp_path, text))
    assert (record["status"], len(steps(folder)), result(folder)["notes"]) == ("ok", 10, [])


def test_of_trainings_in_processes_at_a_time_the_first_counts(tmp_path):
    """All end when its steps are known."""
    text = """
import multiprocessing, os, time
def train(rank):
    import nightsweep
    for n in range(10_000):
        time.sleep(0.02 if rank else 0.05)
        nightsweep.step()
        os.write(1, f"own-{rank} {time.time_ns()}\\n".encode())  # at once, for both write
if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    ranks = [multiprocessing.Process(target=train, args=(rank,)) for rank in range(2)]
    for wait, rank in enumerate(ranks): time.sleep(wait / 4), rank.start()
    for rank in ranks: rank.join()
"""
    record, folder = launch(tmp_path, **script(tmp_path, text), timed_steps=60)
    assert record["status"] == "ok" and len(steps(folder)) == 60
    assert [one_for_each(folder, f"own-{rank} ") for rank in range(2)].count(True) == 1
    assert result(folder)["notes"] == ["several processes trained as rank 0 at a time: the first counts"]


def one_for_each(folder, mark="own "):
    """Whether a timed step ends before each of the script's own, by its log, and after the one before."""
    log = (folder / "timed/rank0.log").read_text().splitlines()
    own = [int(line.split()[1]) for line in log if line.startswith(mark)]
    places = [bisect(own, s["end_ns"]) for s in steps(folder)]
    return places == list(range(places[0], places[0] + len(places)))


def test_a_step_that_a_gradient_scaler_skips_is_one(tmp_path):
    text = f"""{OPTIMIZER}
import time
model = torch.nn.Linear(16, 16)
optimizer = Descent(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for n in range(10_000):
    time.sleep(0.02)
    scaler.scale(model(torch.randn(8, 16)).sum() * (float("inf") if n % 4 == 0 else 1)).backward()
    scaler.step(optimizer)
    scaler.update()
    model.zero_grad()
    print("own", time.time_ns(), flush=True)
"""
    _, folder = launch(tmp_path, **script(tmp_path, text))
    assert one_for_each(folder)


def test_steps_within_a_backward_pass_end_with_it(tmp_path):
    """PyTorch's recipe for one optimizer a weight; a profiler that began within a pass would crash."""
    text = """
import torch, time
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(3)])
each = {weight: torch.optim.Adam([weight]) for weight in model.parameters()}
def update(weight):
    each[weight].step()
    each[weight].zero_grad()
for weight in model.parameters():
    weight.register_post_accumulate_grad_hook(update)
while True:
    time.sleep(0.01)
    model(torch.randn(8, 16)).sum().backward()
    print("own", time.time_ns(), flush=True)
"""
    record, folder = launch(tmp_path, **script(tmp_path, text), traced_steps=3)
    assert (record["status"], record["looks"]["traced"]["status"], len(steps(folder))) == ("ok", "ok", 10)
    assert one_for_each(folder)


def test_children_and_forks_of_a_script_are_not_its_steps(tmp_path):
    text = (
        LOOP
        + """
import os, subprocess, sys
pid = os.fork()
if pid == 0:
    for n in range(5):
        step()
    os._exit(0)
os.waitpid(pid, 0)
subprocess.run([sys.executable, "-c", "import torch"], check=True)
os.chdir("/")
while True:
    step()
"""
    )
    record, folder = launch(tmp_path, **script(tmp_path, text))
    assert (record["status"], len(steps(folder))) == ("ok", 10)
