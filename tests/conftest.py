"""Fixtures of more than one file of tests."""

import gc
import math
import multiprocessing
import os
import signal
import sys

import pytest

from nightsweep.jobs.launch.starts import Servers
from nightsweep.jobs.telemetry.gpu import events
from tests.fakes import nvml as fake_nvml

# Tests and their ranks run side by side on few cores: threads that spin for one another would take most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("POLARS_MAX_THREADS", "1")
# Processes that derive and draw are forked with what they import, which takes longer than what tests have them do.
multiprocessing.set_forkserver_preload(["nightsweep.analysis.tools.derive", "nightsweep.analysis.tools.draw"])
# Where tests run in the background of a shell, Ctrl-C is ignored, also by what they start and send it to.
signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()  # until all tests are collected, a quarter of whose time it would take in each worker
LONGEST = ("test_slurm.py", "test_slurm_faults.py", "test_slurm_chain.py", "test_labelled_scripts.py")
"""The files that take longest: where one of them begins late, it runs on when all others have ended."""

AFTER_LINT = "test_record.py"
"""It checks types: in two seconds with what the lint beside the tests leaves in its cache, else in thirty."""


def pytest_collection_modifyitems(items):
    """Long files go first, the longest before them: with several workers, one at the end would leave the others idle.
    Those on Slurm, which wait for most of their time, are spread among those that compute."""
    long = dict.fromkeys(item.path for item in items if item.get_closest_marker("slow"))
    waiting = [path for path in long if path.parent.name == "slurm"]
    computing = [path for path in long if path not in waiting]
    place = {path: n for n, path in enumerate(computing)} | {path: 3 * n - 0.5 for n, path in enumerate(waiting)}
    place |= {path: LONGEST.index(path.name) - len(LONGEST) for path in long if path.name in LONGEST}
    items.sort(key=lambda item: math.inf if item.path.name == AFTER_LINT else place.get(item.path, math.inf))


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture
def bare(monkeypatch):
    """Nothing of this machine's environment reaches the samplers, and their waits are short."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(events, "WAIT_MS", 50)


@pytest.fixture
def nvml(monkeypatch):
    """Gives this process such GPUs; the library that has them."""

    def use(*gpus_):
        module = fake_nvml.load(list(gpus_))
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return module.nvmlLib

    return use


class LastingServers(Servers):
    """They stay where the name of the test is all that differs, or where its stand-in for a program is: for those
    variables, servers would be started anew for each test."""

    OF_TESTS = ("PYTEST_CURRENT_TEST", "PATH")

    def begin(self, run_folder, point, environment):
        here = {name: self.given[1][name] for name in self.OF_TESTS} if self.given else {}
        return super().begin(run_folder, point, {**environment, **here})


@pytest.fixture(scope="module")
def servers():
    """Forks the ranks of all points of a file: what ranks import takes longer than what they are started for."""
    with LastingServers() as lasting:
        yield lasting


@pytest.fixture(scope="module")
def alone():
    """A process group of this process, as loaders and strategies ask for their rank."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    gc.unfreeze()  # what the step loop has taken for lasting


@pytest.fixture
def image_cache(tmp_path, monkeypatch):
    """A cache folder that nothing is in yet: prepared images, counts of FLOPs, compiled code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/nightsweep"
