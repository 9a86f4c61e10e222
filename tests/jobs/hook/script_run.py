"""Runs a point with workload command, as a sweep does, and reads what it left."""

import json
import re
import subprocess
import sys
from pathlib import Path

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.sweep import code

SCRIPTS = Path(__file__).with_name("scripts")
QUICK = {"workload": "command", "device": "cpu", "warmup_steps": 3, "timed_steps": 10, "traced_steps": 0}

OPTIMIZER = """
import torch
class Descent(torch.optim.Optimizer):
    add_param_group = torch.optim.Optimizer.add_param_group.__wrapped__
    def __init__(self, weights, lr):
        super().__init__(weights, {"lr": lr})
    @torch.no_grad()
    def step(self):
        for weight in self.param_groups[0]["params"]:
            if weight.grad is not None:
                weight -= self.param_groups[0]["lr"] * weight.grad
"""
"""A script's own optimizer. Those of PyTorch import its compiler, which takes a second of a core."""
LOOP = f"""{OPTIMIZER}
model = torch.nn.Linear(16, 4)
optimizer = Descent(model.parameters(), lr=0.01)
def step():
    model(torch.randn(8, 16)).sum().backward()
    optimizer.step()
"""
"""A training loop of one layer, to which a test adds what it is about."""


def launch(tmp_path, *, stall_s=150, timeout_s=200, wait_s=400, **settings):
    """The point's record and folder. `workdir` is the folder of the test scripts unless it is given."""
    point = code.with_code(complete({"workdir": str(SCRIPTS)} | QUICK | settings))
    sweep = tmp_path / "sweep.json"
    sweep.write_text(json.dumps({"name": "t", "points": [{"point_id": point.id, "settings": point.settings()}]}))
    folder = tmp_path / "points" / point.id
    command = [sys.executable, "-m", "nightsweep.jobs.launch.launch", str(folder), "--sweep", str(sweep)]
    command += ["--stall-s", str(stall_s), "--timeout-s", str(timeout_s)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=wait_s)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "record.json").read_text()), folder


def script(tmp_path, text):
    """Settings of a point whose one process runs this text."""
    (tmp_path / "script.py").write_text(text)
    return {"command": "script.py", "launcher": "none", "workdir": str(tmp_path)}


def result(folder, rank=0, run="timed"):
    return json.loads((folder / run / f"rank{rank}.result.json").read_text())


def steps(folder, rank=0):
    """Lines of the timed steps."""
    lines = map(json.loads, (folder / f"timed/steps-r{rank}.jsonl").read_text().splitlines())
    return [line for line in lines if line["phase"] == "timed"]


def own_times(folder, rank=0):
    """When the script's steps ended by its own clock, ns: the last of the warm-up, then those of the timed window but
    for the last one, which the script did not live to tell."""
    window = result(folder, rank)["window"]
    lines = (folder / f"timed/rank{rank}.log").read_text(errors="replace").splitlines()
    ends = [int(line.removeprefix("own ")) for line in lines if re.fullmatch(r"own \d{19}", line)]
    return [end for end in ends if window["start_ns"] < end <= window["end_ns"]]
