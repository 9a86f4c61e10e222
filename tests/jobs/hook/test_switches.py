"""Switches that are imposed on a script: each has its effect, and the losses stay what they were."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nightsweep.jobs.hook import models, switches
from nightsweep.jobs.point.settings.command import SWITCHES
from tests.jobs.hook.script_run import launch, script, steps

pytestmark = pytest.mark.slow
LOOP = """
import json, os, sys, torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 10))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(512, 3, 8, 8), torch.randint(0, 10, (512,)))
loader = torch.utils.data.DataLoader(data, batch_size=8)
syncs, firsts = [], []
reduce = torch.distributed.all_reduce
while True:
    for n, (x, y) in enumerate(loader):
        out = model(x)
        syncs.append(model.require_backward_grad_sync)
        torch.nn.functional.cross_entropy(out, y).backward()
        firsts = firsts or [net[0].weight.grad.stride()]
        if n % 2:
            seen = {
                "workers": loader.num_workers, "prefetch": loader.prefetch_factor,
                "persistent": loader.persistent_workers, "fused": optimizer.param_groups[0]["fused"],
                "bucket": model.bucket_bytes_cap // 2**20, "view": model.gradient_as_bucket_view, "syncs": syncs[-6:],
                "last": net[0].weight.is_contiguous(memory_format=torch.channels_last), "dtype": str(out.dtype),
                "alike": firsts == [net[0].weight.stride()],
                "compiled": net._compiled_call_impl is not None, "threads": os.environ.get("OMP_NUM_THREADS"),
                "allocator": os.environ.get("PYTORCH_ALLOC_CONF"), "benchmark": torch.backends.cudnn.benchmark,
                "tf32": torch.backends.cudnn.allow_tf32,
                "unlocked": hasattr(torch.utils.data._utils.pin_memory.pin_memory, "frees_unlocked"),
            }
            json.dump(seen, open(sys.argv[1], "w"))
            optimizer.step()
            optimizer.zero_grad()
"""
ALL = {
    "loader_workers": 1,
    "prefetch_factor": 3,
    "persistent_workers": True,
    "pin_memory": True,
    "release_unlocked": True,
    "non_blocking": True,
    "optimizer_kernels": "fused",
    "ddp_bucket_mb": 7,
    "ddp_bucket_view": True,
    "no_sync": True,
    "layout": "nhwc",
    "cpu_threads": 3,
    "allocator": "expandable",
    "cudnn_benchmark": True,
    "empty_cache": False,
}


def run(tmp_path, name, launcher="srun", **settings):
    """What the script saw, and its losses."""
    folder = tmp_path / name
    folder.mkdir()
    seen = tmp_path / f"{name}.json"
    start = script(folder, LOOP) | {"command": f"script.py {seen}", "launcher": launcher, "ranks_per_node": 1}
    record, found = launch(folder, **start, **settings, timed_steps=6)
    assert record["status"] == "ok", record["message"]
    return json.loads(seen.read_text()), [line["loss"] for line in steps(found)]


@pytest.fixture(scope="module")
def unswitched(tmp_path_factory):
    return run(tmp_path_factory.mktemp("unswitched"), "plain")


def test_each_switch_has_its_effect_and_losses_stay(tmp_path, unswitched):
    plain, losses = unswitched
    assert (plain["workers"], plain["fused"], plain["syncs"][-2:], plain["last"]) == (0, None, [True, True], False)
    switched, same = run(tmp_path, "switched", "torchrun", **ALL)
    expected = {"workers": 1, "prefetch": 3, "persistent": True, "unlocked": True, "fused": True, "bucket": 7,
                "view": True, "last": True, "alike": True, "threads": "3", "allocator": "expandable_segments:True",
                "benchmark": True}  # fmt: skip
    assert {name: switched[name] for name in expected} == expected
    assert switched["syncs"][-4:] == [False, True, False, True]
    assert same == pytest.approx(losses, rel=1e-4)
    halved, near = run(tmp_path, "halved", precision="bf16")
    assert halved["dtype"] == "torch.float32"  # the loss is as the script would have it
    assert near != losses and near == pytest.approx(losses, rel=0.05)


def test_compiled_from_outside_the_losses_stay(tmp_path, unswitched):
    _, losses = unswitched
    compiled, same = run(tmp_path, "compiled", compile="default")
    assert compiled["compiled"] and same == pytest.approx(losses, rel=1e-3)


def test_layers_that_are_alike_are_compiled_and_not_what_is_around_them():
    """What is found outside of layers, as that attention needs no mask, stays as it is."""
    from torch import nn, randn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.products = nn.LayerNorm(32), nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

        def forward(self, x):
            return x + self.products(self.norm(x))

    net = nn.Sequential(nn.Embedding(1000, 32), nn.ModuleList(Layer() for _ in range(3)), nn.Linear(32, 4))
    layers = list(net[1])
    models._compile([net], None)
    assert [module for module in net.modules() if module._compiled_call_impl] == layers
    x = randn(2, 5, 32)
    for module in layers:
        assert (module(x) - Layer.forward(module, x)).abs().max() < 1e-5
    same = [Layer() for _ in range(3)]
    for other in (
        nn.Sequential(Layer(), nn.Linear(32, 4000)),  # most of it is no list of layers
        nn.Sequential(nn.ModuleList(nn.Linear(32, 32) for _ in range(9)), nn.Linear(32, 4)),  # products alone
        nn.Sequential(nn.ModuleList(same), nn.ModuleList(same), nn.Linear(32, 600)),  # the same layers twice
    ):
        models._compile([other], None)
        assert [module for module in other.modules() if module._compiled_call_impl] == [other]
    graphs = nn.Sequential(nn.Sequential(Layer(), Layer()), nn.Linear(32, 4))
    models._compile([graphs], "reduce-overhead")
    assert [module for module in graphs.modules() if module._compiled_call_impl] == [graphs]
    assert graphs(x).shape == (2, 5, 4)


def test_layers_of_pytorch_itself_are_compiled_as_well():
    """`Module.compile` looks into no code of torch.nn: what it gave ran as before, and nothing was said."""
    from torch import nn, randn
    from torch._dynamo.utils import counters

    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
    net = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    x = randn(2, 5, 32)
    before = net(x)
    counters.clear()
    models._compile([net, nn.Embedding(10, 32)], None)
    assert (net(x) - before).abs().max() < 1e-5
    assert counters["stats"]["unique_graphs"] == 2  # of the three layers; the first one's input needs no gradient
    assert copy.deepcopy(net.layers[0])._compiled_call_impl is None  # nor would a copy call the original


def test_all_models_of_a_script_are_found_each_once():
    """The first module that was called, which may be a table of embeddings, was taken for the whole model."""
    from torch import bfloat16, float32, nn, no_grad, randn, tensor
    from torch.nn.modules import module as modules

    class Net(nn.Sequential):
        pass

    table, net, other = nn.Embedding(10, 8), Net(nn.Linear(8, 8), nn.ReLU()), Net(nn.Linear(8, 2), nn.Tanh())
    frozen, evaluated = Net(nn.Linear(2, 2)).requires_grad_(False), Net(nn.Linear(2, 2)).eval()
    watch = SimpleNamespace(once_known=[], notes=[], in_backward=lambda: False)
    models.switch(watch, {"layout": None, "precision": "bf16", "compile": "default"}, lambda: None)
    seen = []
    net[0].register_forward_hook(lambda *_: seen.append(len(modules._global_forward_pre_hooks)))
    net[0].register_forward_hook(lambda _1, _2, out: seen.append(out.dtype))
    for _ in range(2):
        found = frozen(other(net(table(tensor([1, 2])))))
        with no_grad():
            evaluated(found)
    with pytest.raises(RuntimeError):
        net(randn(3, 3))
    assert seen[:4] == [0, float32, 0, bfloat16]  # a call under way stays as it is
    assert len(modules._global_forward_pre_hooks) == 1
    for change in watch.once_known:
        change()
    assert [one._compiled_call_impl is not None for one in (table, net, other, frozen, evaluated)] == [
        False, True, True, False, False,
    ]  # fmt: skip
    assert not modules._global_forward_pre_hooks and not net[0]._compiled_call_impl
    assert net(table(tensor([1, 2]))).dtype != bfloat16


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("make", ["script", "trace"])
def test_models_of_torchscript_take_no_hook_and_are_not_compiled(make):
    """They ended the script with "register_forward_hook is not supported on ScriptModules"."""
    from torch import channels_last, float32, jit, nn, randn
    from torch.nn.modules import module as modules

    net, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), randn(1, 3, 8, 8)
    model = jit.script(net) if make == "script" else jit.trace(net, x)
    before = model(x)
    watch = SimpleNamespace(once_known=[], notes=[], in_backward=lambda: False)
    models.switch(watch, {"layout": "nhwc", "precision": "bf16", "compile": "default"}, lambda: None)
    for _ in range(2):
        after = model(x)
    assert after.dtype == float32 and 0 < (after - before).abs().max() < 0.1
    assert next(model.parameters()).is_contiguous(memory_format=channels_last)
    for change in watch.once_known:
        change()
    assert not modules._global_forward_pre_hooks and model(x).shape == before.shape
    layers = nn.Sequential(nn.ModuleList([model, model]))
    models._compile([layers], None)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_layout_of_pictures_and_of_volumes(dimensions):
    """`Module.to(memory_format=torch.channels_last)` raises where a convolution is over volumes."""
    from torch import channels_last, channels_last_3d, nn, randn

    convolution, norm = ((nn.Conv2d, nn.BatchNorm2d), (nn.Conv3d, nn.BatchNorm3d))[dimensions - 2]
    net = nn.Sequential(convolution(3, 8, 3), norm(8), nn.Flatten(), nn.LazyLinear(2))
    given, seen = randn(2, 3, *[6] * dimensions), []
    before = net(given)
    net[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    models.channels_last(net, lambda: None)
    last = (channels_last, channels_last_3d)[dimensions - 2]
    assert (net(given) - before).abs().max() < 1e-5
    assert seen[0].is_contiguous(memory_format=last) and net[0].weight.is_contiguous(memory_format=last)


def test_frames_of_a_film_are_no_volume():
    from torch import channels_last, nn, randn

    class OfFrames(nn.Sequential):
        def forward(self, film):
            return super().forward(film.view(-1, *film.shape[2:]))

    net = OfFrames(nn.Conv2d(3, 8, 3))
    models.channels_last(net, lambda: None)
    assert net(randn(2, 4, 3, 6, 6)).shape == (8, 8, 4, 4)
    assert net[0].weight.is_contiguous(memory_format=channels_last)


@pytest.mark.parametrize(
    ("optimizer", "expected"), [("AdamW", {"foreach": False, "fused": True}), ("RMSprop", {"foreach": True})]
)
def test_an_optimizer_that_cannot_be_fused_takes_lists_of_tensors(monkeypatch, optimizer, expected):
    """Without either it would go from tensor to tensor, which is slower than what it does by itself."""
    import torch

    monkeypatch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)  # undone at the end
    switches._switch_optimizer(SimpleNamespace(notes=[]), {"optimizer_kernels": "fused"})
    group = getattr(torch.optim, optimizer)([torch.nn.Parameter(torch.ones(2))], lr=0.1).param_groups[0]
    assert {name: group[name] for name in expected} == expected


def test_every_switch_is_tried_here():
    beyond_cpus = {"comm_hook", "ddp_static_graph", "compile", "precision"}
    assert set(SWITCHES) == (ALL.keys() - {"no_sync"}) | beyond_cpus


BARE = """
import sys
sys.path.insert(0, {site!r})
import sitecustomize, nightsweep
nightsweep.step()
assert sys.modules["nightsweep_jobs.hook.install"].WATCH.rank == 3
assert not any(name.startswith(("nightsweep.", "msgspec", "yaml", "torch")) for name in sys.modules), sys.modules
import nightsweep.jobs.record.input_error
"""


def test_the_hook_needs_nothing_but_python(tmp_path):
    """Neither Nightsweep's package nor torch, until the script imports it."""
    site = Path(__file__).parents[3] / "nightsweep/jobs/hook/site"
    settings = {"seed": 0, "repeat": 0, "warmup_steps": 1}
    (tmp_path / "run.json").write_text(json.dumps({"settings": settings, "blocks": [], "stall_s": 60}))
    environment = {"NIGHTSWEEP_RUN": str(tmp_path), "NIGHTSWEEP_RANK": "3"}
    command = [sys.executable, "-I", "-S", "-c", BARE.format(site=str(site))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_script_may_start_the_command_by_its_module(tmp_path):
    """What stands for the package in a script was run in its place, and did nothing."""
    site = Path(__file__).parents[3] / "nightsweep/jobs/hook/site"
    command = [sys.executable, "-m", "nightsweep", "--version"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    assert subprocess.check_output(command, env=environment, cwd=tmp_path, text=True).startswith("nightsweep ")
