"""Scripts of others as points: plain loops, Trainer, Lightning and DeepSpeed, none of which knows of Nightsweep."""

import json
import sys
from itertools import combinations
from statistics import median

import pytest

from tests.jobs.hook.script_run import OPTIMIZER, launch, own_times, result, script, steps

pytestmark = pytest.mark.slow

CASES = {
    "torchrun": ({"command": "plain.py", "launcher": "torchrun", "ranks_per_node": 2}, "optimizer", 32, 1),
    "srun": ({"command": "plain.py --accumulate 2", "launcher": "srun", "ranks_per_node": 2}, "optimizer", 64, 2),
    "accelerate": ({"command": "trainer.py {out}", "launcher": "accelerate"}, "optimizer", 8, 2),
    "lightning": (
        {"command": f"{sys.executable} lightning_.py", "launcher": "none", "ranks_per_node": 2},
        "optimizer",
        32,
        1,
    ),
    "deepspeed": ({"command": "engine.py", "launcher": "deepspeed", "ranks_per_node": 2}, "engine", 32, 2),
}


@pytest.mark.parametrize(("settings", "source", "samples", "passes"), CASES.values(), ids=CASES)
def test_steps_of_unchanged_scripts_are_found_and_timed(tmp_path, settings, source, samples, passes):
    record, folder = launch(tmp_path, stall_s=150, **settings)  # DeepSpeed may compile
    assert (record["status"], record["message"]) == ("ok", None)
    came_to = dict.fromkeys(phase["phase"] for phase in record["phases"] if phase["look"] == "timed")
    assert list(came_to) == ["start", "warmup", "timed", "results", "teardown"]
    for rank in range(settings.get("ranks_per_node", 1)):
        found, lines = result(folder, rank), steps(folder, rank)
        assert (found["step_source"], found["notes"], found["passes"], len(lines)) == (source, [], passes, 10)
        assert all(line["samples"] == samples and 0 < line["loss"] < 10 for line in lines)
        assert all(0 < line["data_ns"] < line["end_ns"] - line["start_ns"] for line in lines)
        if settings["launcher"] != "none" or rank == 0:  # the script's second rank has no log of its own
            own = own_times(folder, rank)
            assert len(own) == 10
            # The script tells of a step somewhat after its end: each before the next one ends, alike in length.
            assert all(line["start_ns"] <= end < line["end_ns"] for line, end in zip(lines, own, strict=True))
            # It tells of each step somewhat later: over spans of five steps and more, of which most are not disturbed.
            spans = [(a, b) for a, b in combinations(range(len(own)), 2) if b - a >= 5]
            assert median(
                (own[b] - own[a]) / (lines[b]["start_ns"] - lines[a]["start_ns"]) for a, b in spans
            ) == pytest.approx(1, rel=0.01)


def test_the_control_compares_steps_with_and_without_the_hook(tmp_path):
    """In blocks of the phase `none` it does nothing but see where steps end."""
    record, folder = launch(tmp_path, command="plain.py --steps 100000", launcher="none", cost_pairs=1)
    assert record["looks"]["control"]["status"] == "ok"
    lines = [json.loads(line) for line in (folder / "cost-plain-0/steps-r0.jsonl").read_text().splitlines()]
    seen = {phase: [line for line in lines if line["phase"] == phase] for phase in ("none", "sampler")}
    assert len(seen["none"]) == len(seen["sampler"]) > 100
    assert all(line["loss"] is None and line["data_ns"] == 0 for line in seen["none"])
    assert all(line["loss"] > 0 and line["data_ns"] > 0 for line in seen["sampler"])


def test_what_the_hook_costs_a_step(tmp_path):
    """By a clock around each of its calls: less than 0.5 % of a step of 20 ms."""
    text = f"""{OPTIMIZER}
import sys, time
watch = sys.modules["nightsweep_jobs.hook.install"].WATCH
mark, spent = watch.mark, []
def timed(source):
    began = time.perf_counter_ns()
    mark(source)
    spent.append(time.perf_counter_ns() - began)
watch.mark = timed
model = torch.nn.Linear(8, 1)
optimizer = Descent(model.parameters(), lr=0.01)
for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(500, 8))):
    model(x).sum().backward()
    optimizer.step()
spent.sort()
open("spent", "w").write(str(spent[len(spent) // 2]))
"""
    record, _ = launch(tmp_path, **script(tmp_path, text), timed_steps=400, run_to_end=True)
    assert record["status"] == "ok"
    assert int((tmp_path / "spent").read_text()) < 0.005 * 20e6


def test_a_loader_is_waited_for_as_it_starts_and_ends(tmp_path):
    """Once in two steps its start, that of a loader within it, and its end take 0.4 s each, and count once."""
    text = f"""{OPTIMIZER}
import time
class Slow(torch.utils.data.IterableDataset):
    def __iter__(self):
        for _ in Loader(torch.zeros(2, 1)):
            yield torch.randn(8)
        time.sleep(0.4)
class Loader(torch.utils.data.DataLoader):
    def _get_iterator(self):
        time.sleep(0.4)
        return super()._get_iterator()
model = torch.nn.Linear(8, 1)
optimizer = Descent(model.parameters(), lr=0.01)
while True:
    for x in Loader(Slow(), batch_size=1):
        model(x).sum().backward()
        optimizer.step()
"""
    record, folder = launch(tmp_path, **script(tmp_path, text))
    assert record["status"] == "ok"
    waits = [line["data_ns"] / 1e9 for line in steps(folder)]
    assert sum(wait >= 1.2 for wait in waits) == len(waits) / 2 == 5
    assert sum(waits) < 5 * 1.4
