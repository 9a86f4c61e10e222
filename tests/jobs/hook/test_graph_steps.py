"""When what CUDA graphs gave may be overwritten: PyTorch is told of each step, else it keeps what all of them gave."""

import torch

from nightsweep.jobs.hook import patches
from nightsweep.jobs.hook.watch import Watch
from nightsweep.jobs.record.folder import RunFolder
from tests.jobs.hook.script_run import OPTIMIZER

SETTINGS = {"seed": 0, "repeat": 0, "warmup_steps": 9, "traced_steps": 0}


def watched(folder, monkeypatch):
    """A watch, and the steps so far that its graphs were told of."""
    watch, begun = Watch(RunFolder(folder), {"settings": SETTINGS, "blocks": []}, 0), []
    monkeypatch.setattr(watch, "_begin", lambda: None)
    watch.begin_graphs = lambda: begun.append(len(watch.steps))
    return watch, begun


def test_steps_of_a_script_without_an_optimizer_are_told(tmp_path, monkeypatch):
    """As of one that changes its weights itself."""
    watch, begun = watched(tmp_path, monkeypatch)
    for _ in range(3):
        watch.mark("call")
        watch.mark("range")  # a worse source
    assert begun == [0, 1]
    watch.over = True
    watch.mark("call")
    assert len(begun) == 3


def test_steps_are_told_when_they_are_no_longer_watched(tmp_path, monkeypatch):
    """As with `run_to_end`."""
    watch, begun = watched(tmp_path, monkeypatch)

    class Base:
        profile_hook_step = staticmethod(lambda function: function)

    monkeypatch.setattr(torch.amp.GradScaler, "step", torch.amp.GradScaler.step)
    patches._patch_optimizer(watch, Base)
    names = {}
    exec(OPTIMIZER, names)
    optimizer = names["Descent"]([torch.ones(1, requires_grad=True)], lr=0.1)
    step = Base.profile_hook_step(names["Descent"].step)
    for over in (False, False, True, True):
        watch.over = over
        step(optimizer)
    assert len(begun) == 3
    watch.over = True
