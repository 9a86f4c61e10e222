"""When what CUDA graphs gave may be overwritten: PyTorch has to know where each step begins, or it keeps all of it."""

import pytest
import torch
from torch import nn
from torch._inductor.cudagraph_trees import MarkStepBox

from nightsweep.jobs.hook import models, optimizers
from nightsweep.jobs.hook.watch import Watch
from nightsweep.jobs.point.settings.compute import GRAPHING_MODES
from nightsweep.jobs.record.folder import RunFolder
from tests.jobs.hook.script_run import OPTIMIZER

SETTINGS = {"seed": 0, "repeat": 0, "warmup_steps": 9, "traced_steps": 0}


@pytest.fixture
def watch(tmp_path):
    made = Watch(RunFolder(tmp_path), {"settings": SETTINGS, "blocks": []}, 0)
    yield made
    made.over = True


@pytest.fixture
def begun(watch, monkeypatch):
    """At which steps graphs began anew."""
    found = []
    monkeypatch.setattr(watch, "_begin", lambda: None)
    watch.begin_graphs = lambda: found.append(len(watch.steps))
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("undone")
@pytest.mark.parametrize(
    ("mode", "expected"), [("default", []), ("reduce-overhead", ["compiled", "judge", "maker", "maker"])]
)
def test_what_graphs_give_lasts_for_a_step(mode, expected, watch, monkeypatch):
    """It was overwritten by the next call after a backward pass, as where two networks train against each other: what
    the maker made is judged again when the judge has stepped. It may be overwritten from the first compiled call on."""
    models.switch(watch, dict.fromkeys(("layout", "precision")) | {"compile": mode}, lambda: None)
    nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))(torch.ones(2, 8))
    found, before = [], MarkStepBox.mark_step_counter

    def look(name):
        nonlocal before
        if MarkStepBox.mark_step_counter != before:
            before = MarkStepBox.mark_step_counter
            found.append(name)

    for change in watch.once_known:
        change()
    look("compiled")
    monkeypatch.setattr(watch, "mark", lambda source: None)
    leader, own = optimizers.Leader(watch), {"judge": nn.Linear(1, 1), "maker": nn.Linear(1, 1)}
    for name in ("judge", "judge", "maker", "judge", "maker", "judge", "maker"):
        leader.stepped(own[name])
        look(name)
    assert found == expected and models.GRAPHS == GRAPHING_MODES


def test_graphs_begin_anew_at_each_step_of_a_script_without_an_optimizer(watch, begun):
    """As of one that changes its weights itself."""
    for _ in range(3):
        watch.mark("call")
        watch.mark("range")  # a worse source
    assert begun == [0, 1]
    watch.over = True
    watch.mark("call")
    assert len(begun) == 3


def test_graphs_begin_anew_also_when_steps_are_no_longer_watched(watch, begun, monkeypatch):
    """As with `run_to_end`."""

    class Base:
        profile_hook_step = staticmethod(lambda function: function)

    monkeypatch.setattr(torch.amp.GradScaler, "step", torch.amp.GradScaler.step)
    optimizers.patch_optimizer(watch, Base)
    names = {}
    exec(OPTIMIZER, names)
    optimizer = names["Descent"]([torch.ones(1, requires_grad=True)], lr=0.1)
    step = Base.profile_hook_step(names["Descent"].step)
    for over in (False, False, True, True):
        watch.over = over
        step(optimizer)
    assert len(begun) == 3
