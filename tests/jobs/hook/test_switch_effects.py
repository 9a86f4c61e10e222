"""Switches in scripts that do things in other ways: where a switch has no effect, the record says so."""

import copy
import io
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Ddp

from nightsweep.jobs.hook import averaging, models, outcome, patches
from nightsweep.jobs.hook.watch import Watch
from tests.jobs.hook.script_run import LOOP, launch, result, script
from tests.jobs.hook.switched import switched

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undone")]


@pytest.fixture
def alone(tmp_path):
    torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(str(tmp_path / "store"), 1),
                                         rank=0, world_size=1)  # fmt: skip
    yield
    torch.distributed.destroy_process_group()


class Net(nn.Module):
    def __init__(self, out=lambda y: y):
        super().__init__()
        self.first, self.last, self.out = nn.Linear(8, 8), nn.Linear(8, 8), out

    def forward(self, x):
        return self.out(self.last(self.first(x).relu()))


class Pair(NamedTuple):
    y: torch.Tensor
    n: int


@dataclass(frozen=True)
class Output:
    y: torch.Tensor


def test_a_switch_that_found_nothing_is_noted(tmp_path):
    without = {"loader_workers": 1, "ddp_bucket_mb": 5, "no_sync": True, "layout": "nhwc", "cudnn_benchmark": True,
               "optimizer_kernels": "foreach", "cpu_threads": 2}  # fmt: skip
    text = "import os, torch\nos.environ['OMP_NUM_THREADS'] = '1'\n"
    text += f"torch.set_grad_enabled(False){LOOP}\noptimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
    text += "for _ in range(99):\n"
    text += "    torch.backends.cudnn.benchmark = False\n"
    text += "    model.weight.grad = model.weight * 0\n    optimizer.step()\n"
    record, folder = launch(tmp_path, **script(tmp_path, text), **without, compile="default")
    assert record["status"] == "ok", record["message"]
    named = {note.split()[2] for note in result(folder)["notes"] if note.startswith("the switch ")}
    assert named == {"compile", *without} - {"optimizer_kernels"}


def test_what_a_script_sets_as_it_begins_is_set_again():
    watch = switched(precision="tf32", cudnn_benchmark=True)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = False
    for change in watch.once_known:
        change()
    assert torch.get_float32_matmul_precision() != "highest"
    assert torch.backends.cudnn.allow_tf32 and torch.backends.cudnn.benchmark


def test_tf32_that_a_script_switches_off_in_part_is_noted():
    watch = switched(precision="tf32")
    watch.settings = {"precision": "tf32"}
    assert not outcome.without_effect(watch)
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # after which `allow_tf32` cannot be read
    (note,) = outcome.without_effect(watch)
    torch.backends.cudnn.allow_tf32 = True
    assert note.startswith("the switch precision had no effect")


def test_a_model_in_evaluation_mode_is_trained_as_well():
    """As a pretrained model of transformers is that nobody calls `train` of."""
    watch, net = switched(compile="default"), Net().eval()
    net(torch.ones(2, 8))
    for change in watch.once_known:
        change()
    assert net._compiled_call_impl is not None


@pytest.mark.parametrize(("mode", "kept"), [("default", 9.0), ("reduce-overhead", 1.0)])
def test_a_loss_that_a_graph_gave_is_kept_apart(mode, kept, monkeypatch):
    """The next step writes its loss to the same place, before losses are read."""
    for owner, name in ((torch.Tensor, "backward"), (torch.autograd, "backward"), (torch.amp.GradScaler, "scale")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    current = SimpleNamespace(losses=[])
    watch = Watch.__new__(Watch)
    vars(watch).update(settings={"compile": mode}, current=current, over=False, late=None, capturing=False)
    monkeypatch.setattr(Watch, "bare", False)
    monkeypatch.setattr(Watch, "is_own", lambda self: True)
    patches._patch_backward(watch)
    loss = torch.ones((), requires_grad=True) * 1
    loss.backward()
    loss.detach().fill_(9)
    assert [float(own) for own in current.losses] == [kept]


def test_a_part_that_the_script_calls_by_itself_is_switched_as_well():
    """Such as the discriminator of a LightningModule that is called itself."""
    switched(precision="bf16")
    net = Net()
    for _ in range(2):
        net(torch.ones(2, 8))
        net.first(torch.ones(2, 8))
    assert "forward" in vars(net.first)


@pytest.mark.parametrize(
    ("out", "read"),
    [
        (Output, lambda found: found.y),
        (lambda y: Pair(y, 1), lambda found: found.y),
        (lambda y: {"a": ({"b": y}, None)}, lambda found: found["a"][0]["b"]),
    ],
)
def test_what_comes_out_of_bf16_is_in_fp32_wherever_it_is(out, read):
    net = Net(out)
    models._autocast(net)
    x = torch.randn(2, 8)
    y = read(net(x))
    assert y.dtype == torch.float32 and torch.equal(y.bfloat16().float(), y) and type(net(x)) is type(out(x))


def test_copies_of_a_switched_model_are_models_of_their_own():
    net = nn.Sequential(nn.Conv2d(3, 4, 3))
    x = torch.randn(2, 3, 6, 6)
    models.channels_last(net, lambda: None)
    models._autocast(net)
    other = copy.deepcopy(net)
    nn.init.zeros_(other[0].weight), nn.init.zeros_(other[0].bias)
    assert not other(x).any() and net(x).any()
    torch.save(net, io.BytesIO())  # was an error


def test_pictures_that_are_given_by_name_are_laid_out():
    class Named(nn.Sequential):
        def forward(self, *, pixel_values):
            return pixel_values.is_contiguous(memory_format=torch.channels_last)

    net = Named(nn.Conv2d(3, 4, 3))
    models.channels_last(net, lambda: None)
    assert net(pixel_values=torch.randn(2, 3, 6, 6))


def test_a_model_on_several_devices_is_not_compiled():
    """Copies of it would compute with the weights of the original."""
    watch, net = switched(compile="default"), Net()
    net.device_ids = [0, 1]
    net(torch.ones(2, 8))
    for change in watch.once_known:
        change()
    assert net._compiled_call_impl is None


def test_a_checkpoint_does_not_bring_its_kernels():
    parameters = [nn.Parameter(torch.ones(2))]
    saved = torch.optim.AdamW(parameters).state_dict()
    watch = switched(optimizer_kernels="fused")
    assert watch.notes
    optimizer = torch.optim.AdamW(parameters)
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["fused"] and not watch.notes


def test_workers_that_read_the_same_are_noted():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(9))

    watch = switched(loader_workers=2)
    torch.utils.data.DataLoader([1], 8)
    assert not watch.notes
    torch.utils.data.DataLoader(Stream(), 8)
    assert "IterableDataset" in watch.notes[0]


def test_the_cache_is_not_emptied_by_other_names_either(monkeypatch):
    monkeypatch.setattr(torch._C, "_accelerator_isAllocatorInitialized", lambda: 1 / 0)
    watch = switched(empty_cache=False)
    assert watch.notes
    torch.accelerator.empty_cache()
    assert not watch.notes


def test_the_gpu_is_not_looked_for_before_the_script_does(monkeypatch):
    """CUDA reads CUDA_VISIBLE_DEVICES once, and a script may set it after it has imported torch."""
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 1 / 0, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: 1 / 0)
    switched(pin_memory=True, non_blocking=True, precision="tf32", empty_cache=False, optimizer_kernels="fused")


def test_arguments_of_ddp_by_their_place(alone):
    watch = switched(ddp_bucket_mb=7)
    model = Ddp(Net(), None, None, 0, True, True, None, 25)
    assert model.bucket_bytes_cap == 7 << 20 and not watch.notes


def descent(model):
    class Descent(torch.optim.SGD):  # PyTorch wraps the step of a class once
        def step(self, closure=None):
            return super().step(closure)

    return Descent(model.parameters(), 0.1)


def averaged(model, passes, optimizer):
    seen = []
    for _ in range(passes):
        model(torch.ones(2, 8)).sum().backward()
        seen.append(model.require_backward_grad_sync)
    optimizer.step()
    return seen


def test_each_model_is_averaged_after_its_own_passes(alone):
    """The second of two models that take turns, which has one pass, was not averaged after two of the first one's."""
    used = []
    averaging.average_last(lambda: used.append(1))
    models = [Ddp(Net()), Ddp(Net())]
    first, second = map(descent, models)
    assert averaged(models[0], 2, first) == [True, True] and not used
    for _ in range(2):
        assert averaged(models[1], 1, second) == [True]
        with torch.no_grad():
            models[0](torch.ones(2, 8))
        assert averaged(models[0], 2, first) == [False, True] and used


def test_a_step_that_a_scaler_skips_is_counted(alone):
    """Else the next step would be waited for to have twice the passes, and not be averaged."""
    averaging.average_last(lambda: None)
    model = Ddp(Net())
    optimizer = descent(model)
    scaler = torch.amp.GradScaler("cpu")
    seen = []
    for scale in (float("inf"), 1.0, 1.0):
        for _ in range(2):
            scaler.scale(model(torch.ones(2, 8)).sum() * scale).backward()
            seen.append(model.require_backward_grad_sync)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert seen == [True, True, False, True, False, True]


def test_what_a_backward_pass_calls_again_is_no_model():
    """A layer that is computed twice would give fp32 the second time, which checkpoints do not accept."""
    from torch.utils.checkpoint import checkpoint

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(8, 8), nn.GELU())

        def forward(self, x):
            return checkpoint(self.layer, x, use_reentrant=False)

    net = Twice()
    watch = SimpleNamespace(once_known=[], notes=[], in_backward=lambda: torch._C._current_graph_task_id() != -1)
    models.switch(watch, {"layout": None, "precision": "bf16", "compile": None}, lambda: None)
    for _ in range(2):
        net(torch.randn(2, 8)).sum().backward()
    assert "forward" in vars(net) and "forward" not in vars(net.layer)
    for change in watch.once_known:
        change()


def test_a_forward_pass_that_is_no_method_of_the_model_runs_under_autocast():
    net, other = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
    net.forward = other.forward
    models._autocast(net)
    assert net(torch.randn(2, 8)).shape == (2, 4)
