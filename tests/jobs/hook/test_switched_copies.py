"""Copies: to a GPU, through page-locked memory and without a wait, and from one layout of pictures to another."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import channels_last, nn

from nightsweep.jobs.hook import models, optimizers, probe
from nightsweep.jobs.hook.forward import Calls
from nightsweep.jobs.hook.watch import Watch
from tests.jobs.hook.switched import switched

pytestmark = pytest.mark.usefixtures("undone")


def test_copies_do_not_wait_also_where_a_library_says_false(monkeypatch):
    """As accelerate's send_to_device does, and transformers' BatchEncoding."""
    given = []

    def to(self, *args, **kwargs):
        given.append((args, kwargs))
        return torch.empty(2, device="meta")

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    watch = switched(non_blocking=True)
    assert watch.notes
    x = torch.ones(2)
    x.to("cuda", None, False)  # as Module.to does: by place it is not touched
    x.to(device="cuda", non_blocking=False)
    assert given == [(("cuda", None, False), {}), ((), {"device": "cuda", "non_blocking": True})]
    assert not watch.notes


def test_large_batches_go_through_page_locked_memory(monkeypatch):
    """Where the script's batches come from no DataLoader."""
    given, pinned = [], torch.ones(2)

    def to(self, *args, **kwargs):
        given.append((self is pinned, args, kwargs))
        return torch.empty(2, device="meta")

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: self is pinned)
    watch = switched(pin_memory=True, non_blocking=True)
    batch, ahead = torch.ones(1 << 18), {"non_blocking": True}
    batch.to(torch.bfloat16)
    batch[:8].to("cuda")  # CUDA takes it at once
    batch[::2].to("cuda")
    batch.clone().requires_grad_().to("cuda")
    nn.Parameter(batch).to("cuda")
    assert not any(one for one, *_ in given) and len(watch.notes) == 2
    given.clear()
    batch.to("cuda")
    batch.to(1, torch.bfloat16)
    batch.to(device=torch.device("cuda"))
    batch.to("cuda", None, False)
    by_place = (True, ("cuda", None, False), {})
    assert given[:2] == [(True, ("cuda",), ahead), (True, (1, torch.bfloat16), ahead)]
    assert given[2:] == [(True, (), {"device": torch.device("cuda"), **ahead}), by_place]
    assert not watch.notes


def test_copies_go_on_where_there_is_no_page_locked_memory(monkeypatch):
    """What cannot be asked for it either: a tensor within torch.vmap. Before the first step none is asked for it."""
    asked, batch = [], torch.ones(1 << 18)

    def none_left(self):
        asked.append(self)
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.Tensor, "to", lambda self, *args, **kwargs: (self, args))
    monkeypatch.setattr(torch.Tensor, "pin_memory", none_left)
    watch = switched(pin_memory=True, non_blocking=True)
    watch.current = None
    assert batch.to("cuda")[0] is batch and not asked
    watch.current = object()
    assert batch.to("cuda")[0] is batch and asked == [batch] and len(watch.notes) == 2
    assert torch.vmap(lambda x: x.to("cuda")[0])(batch[None]).shape == (1, 1 << 18)


def test_other_copies_are_left_alone():
    """torch.vmap does not know whether memory is page-locked."""
    switched(pin_memory=True, non_blocking=True)
    assert torch.vmap(lambda x: x.to(torch.float64))(torch.ones(2, 1 << 18)).dtype == torch.float64


def test_how_weights_lie():
    pictures, volumes, series = nn.Conv2d(4, 8, 3), nn.Conv3d(4, 8, 3), nn.Conv1d(4, 8, 3)
    dot = nn.Conv2d(4, 8, 1)  # lies both ways
    assert [models.weights_layout(net.parameters()) for net in (pictures, volumes, dot)] == ["nchw"] * 3
    pictures.to(memory_format=channels_last)
    assert models.weights_layout([*pictures.parameters(), *dot.parameters()]) == "nhwc"
    assert models.weights_layout(series.parameters()) == "none"
    assert models.weights_layout([torch.ones(100)]) is None  # sharded: those of all layers in one
    assert models.weights_layout([torch.ones(2, 3, 4, 4).to_sparse_csr()]) == "nchw"


def test_weights_that_the_first_call_makes_are_laid_out_then():
    watch, net = switched(layout="nhwc"), nn.Sequential(nn.LazyConv2d(8, 3), nn.ReLU())
    net(torch.ones(1, 4, 6, 6))
    assert watch.notes
    net(torch.ones(1, 4, 6, 6))
    assert models.weights_layout(net.parameters()) == "nhwc" and not watch.notes


def test_an_optimizer_may_have_weights_that_no_call_has_made():
    class Own(torch.optim.Optimizer):
        def step(self):
            return "done"

    watch = SimpleNamespace(is_own=lambda: True, spanned=lambda _: nullcontext(), mark=lambda _: None)
    watch.trainable, watch.weights_layout = {}, None
    optimizers.patch_optimizer(watch, torch.optim.Optimizer)
    optimizer = Own([*nn.Conv2d(4, 8, 3, bias=False).parameters(), *nn.LazyLinear(2).parameters()], {})
    assert optimizer.step() == "done"
    assert watch.trainable == {id(optimizer): 288} and watch.weights_layout == "nchw"


@pytest.mark.parametrize(("layout", "noted"), [(channels_last, True), (torch.contiguous_format, False)])
def test_a_layout_that_the_model_has_already_has_no_effect(layout, noted):
    watch, net = switched(layout="nhwc"), nn.Conv2d(4, 8, 3).to(memory_format=layout)
    net(torch.ones(1, 4, 6, 6))
    assert bool(watch.notes) == noted


def test_lines_that_copy_pictures_back_to_nchw(monkeypatch):
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    found = []
    end = probe.begin(SimpleNamespace(found_place=found.append, calls=Calls(None)))
    x = torch.ones(2, 3, 4, 4).contiguous(memory_format=channels_last)
    x.contiguous(memory_format=channels_last)
    x.permute(0, 2, 3, 1).contiguous()  # as it lies
    x[:, :, 0].reshape(2, -1)
    x.flatten(2)  # a view
    assert not found
    assert x.contiguous().is_contiguous() and torch.equal(x.flatten(1), x.reshape(2, -1))
    end()
    x.contiguous()
    assert found == ["copy from NHWC to NCHW"] * 3


def test_what_is_compiled_or_mapped_in_the_step_that_is_looked_at_runs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    end = probe.begin(SimpleNamespace(found_place=id, calls=Calls(None)))
    x = torch.ones(2, 3, 4, 4).contiguous(memory_format=channels_last)
    compiled = torch.compile(lambda x: x.contiguous().flatten(1), backend="eager", fullgraph=True)
    assert compiled(x).shape == (2, 48)
    assert torch.vmap(lambda x: x.transpose(0, 2).contiguous())(x[None]).shape == (1, 4, 3, 2, 4)
    end()


def test_a_look_at_a_step_that_is_dropped_is_ended():
    ended, step = [], SimpleNamespace(memory=None)
    watch = SimpleNamespace(is_own=lambda: True, source="optimizer", range=None, notes=[], block=2, capturing=False)
    watch.probing, watch._event, watch.allocator, watch.steps, watch.left = lambda: ended.append(1), id, None, [], 1
    Watch.drop_step(watch, "optimizer", "why")
    Watch._close(watch, step)
    assert ended == [1] and watch.probing is None
