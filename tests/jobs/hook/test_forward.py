"""Ranges around the calls of the modules that a script itself calls, while a trace is taken."""

import contextlib
import copy
import gc
import io
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils import checkpoint

from nightsweep.jobs.hook import forward
from nightsweep.jobs.hook.forward import Calls


class Noting(nn.Module):
    """Notes what ranges are open where it is called."""

    def __init__(self, notes):
        super().__init__()
        self.weight, self.notes = nn.Parameter(torch.ones(())), notes

    def forward(self, x):
        self.notes.append(self.notes.open)
        return x * self.weight


class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x).relu()


class Notes(list):
    open = 0


@pytest.fixture
def watched():
    """The calls, and where notes are made of them."""
    notes = Notes()

    @contextlib.contextmanager
    def spanned(name):
        assert name == "forward"
        notes.open += 1
        try:
            yield
        finally:
            notes.open -= 1

    torch._dynamo.utils.counters.clear()
    yield Calls(SimpleNamespace(spanned=spanned, in_backward=lambda: False)), notes
    torch._dynamo.utils.counters.clear()


def looked_at(calls, step):
    end = calls.begin()
    step()
    end()


def test_what_the_script_calls_has_a_range_and_its_parts_have_none(watched):
    calls, notes = watched
    net, head, frozen = nn.Sequential(Noting(notes), Noting(notes)), Noting(notes), Noting(notes).requires_grad_(False)

    def step():
        notes.clear()
        frozen(head(net(torch.ones(2))))

    step()
    assert notes == [0, 0, 0, 0]
    looked_at(calls, step)
    assert notes == [0, 0, 0, 0]
    calls.mark()
    step()
    assert notes == [1, 1, 1, 0]  # that which learns nothing is compiled by no setting
    with pytest.raises(TypeError):
        net(None)
    calls.unmark()
    assert notes.open == 0
    step()
    assert notes == [0, 0, 0, 0]


class Stateful(nn.Linear):
    """Gives all that it has, as DistributedDataParallel and LightningModule do."""

    def __getstate__(self):
        return dict(self.__dict__)


class Setting(nn.Module):
    """Sets what both have of both, as what Lightning Fabric's `setup` returns."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if "module" in self._modules and hasattr(self.module, name):
            setattr(self.module, name, value)

    def forward(self, x):
        return self.module(x)


def test_what_a_module_sets_of_its_own_module_is_called_once(watched):
    calls, notes = watched
    net = Setting(Noting(notes))
    looked_at(calls, lambda: net(torch.ones(2)))
    calls.mark()
    net(torch.ones(2))
    calls.unmark()
    assert notes == [0, 1]


def test_what_is_copied_to_several_devices_calls_its_own(watched):
    calls, _ = watched
    net = nn.Linear(2, 2)
    several = nn.DataParallel(net)
    looked_at(calls, lambda: several(net(torch.ones(1, 2))))
    calls.mark()
    assert several._compiled_call_impl is not None and net._replicate_for_data_parallel()._compiled_call_impl is None
    calls.unmark()


@pytest.mark.parametrize("kind", [nn.Linear, Stateful])
def test_ranges_go_into_no_copy_and_no_file(watched, kind):
    calls, _ = watched
    net = kind(2, 2)
    end = calls.begin()
    net(torch.ones(2))
    end()
    calls.mark()
    assert net._compiled_call_impl is not None and copy.deepcopy(net)._compiled_call_impl is None
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    assert torch.load(file, weights_only=False)._compiled_call_impl is None
    calls.unmark()
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


def test_what_a_backward_pass_calls_again_has_none(watched):
    calls, notes = watched
    net = Noting(notes)
    calls.watch.in_backward = lambda: torch._C._current_graph_task_id() != -1

    def step():
        checkpoint.checkpoint(net, torch.ones(2), use_reentrant=False).sum().backward()

    looked_at(calls, step)
    notes.clear()
    calls.mark()
    step()
    calls.unmark()
    assert notes == [1, 0]


def test_modules_called_very_often_have_none(watched):
    calls, notes = watched
    cell = Noting(notes)
    looked_at(calls, lambda: [cell(torch.ones(2)) for _ in range(forward.MOST_CALLS + 1)])
    calls.mark()
    cell(torch.ones(2))
    assert set(notes) == {0}


def test_nothing_is_left_where_a_step_ends_within_a_call(watched):
    """As of Lightning's that optimize by hand within the forward pass of DistributedDataParallel."""
    calls, _ = watched
    net = nn.Linear(2, 2)
    ends = [calls.begin()]
    net.register_forward_hook(lambda *_: ends.pop()())
    net(torch.ones(2))
    assert not ends and not torch.nn.modules.module._global_forward_pre_hooks and len(net._forward_hooks) == 1


class Equal(Noting):
    """Equal to all others of its kind, with groups of parameters as an optimizer takes them."""

    def __eq__(self, other):
        return isinstance(other, Equal)

    def __hash__(self):
        return 1

    def parameters(self, recurse=True):
        return [{"params": [self.weight], "lr": 1.0}]


def test_modules_that_are_equal_or_have_their_own_parameters_have_one_each(watched):
    calls, notes = watched
    one, other = Equal(notes), Equal(notes)
    looked_at(calls, lambda: other(one(torch.ones(2))))
    calls.mark()
    notes.clear()
    other(one(torch.ones(2)))
    calls.unmark()
    assert notes == [1, 1]


@pytest.mark.parametrize("own", ["module", "function"])
def test_what_is_compiled_is_compiled_once_and_has_none(watched, own):
    calls, _ = watched
    net = Net(2, 2)
    if own == "module":
        net.compile(backend="eager")
        step = net
    else:
        step = torch.compile(lambda x: net(x), backend="eager")
    step(torch.ones(2))
    compiled = net._compiled_call_impl
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    looked_at(calls, lambda: step(torch.ones(2)))
    calls.mark()
    assert net._compiled_call_impl is compiled
    step(torch.ones(2))
    calls.unmark()
    assert net._compiled_call_impl is compiled
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before == 1
