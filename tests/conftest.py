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
