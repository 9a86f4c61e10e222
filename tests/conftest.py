"""Fixtures of more than one file of tests."""

import sys

import pytest

from jobs.telemetry import events, samplers
from tests import fake_nvml


@pytest.fixture
def bare(monkeypatch):
    """Nothing of this machine's environment reaches the samplers, and their waits are short."""
    for name in ("CUDA_VISIBLE_DEVICES", events.ALERT_VARIABLE, samplers.OFF_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(events, "WAIT_MS", 50)


@pytest.fixture
def nvml(monkeypatch):
    """Gives this process such GPUs; the library that has them."""

    def use(*gpus_):
        module = fake_nvml.load(list(gpus_))
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return module.nvmlLib

    return use


@pytest.fixture(scope="module")
def alone():
    """A process group of this process, as loaders and strategies ask for their rank; a thread, for operators are small
    in tests."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    dist.destroy_process_group()


@pytest.fixture
def image_cache(tmp_path, monkeypatch):
    """An empty folder of prepared images."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/nightsweep"
