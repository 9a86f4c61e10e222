"""For tests of the GPU sampler: it runs on GPUs that tests/fakes/nvml.py makes up, here or as a process of its own, and
what it left is read. Fixtures are in tests/conftest.py."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import read_lines
from nightsweep.jobs.sweep.alert import Alert
from nightsweep.jobs.sweep.order import Order
from nightsweep.jobs.telemetry.gpu import log
from nightsweep.jobs.telemetry.gpu.sampler import Sampler
from tests.fakes import nvml
from tests.fakes.nvml import gpu

ROOT = Path(__file__).parents[3]
HOST = socket.gethostname()
SPLIT = {"migs": [["MIG-a1", 3], ["MIG-b2", 5]]}
"""Settings of a GPU that is split into MIG devices."""


def ordered(hz=10, **more):
    """What the launcher would ask of a run."""
    return Order(settings={"workload": "image", "model": "mobilenet_v2", "nvml_hz": hz}, **more)


def make_run_folder(folder, hz=10, **more):
    run_folder = RunFolder(folder / "timed.1")
    run_folder.path.mkdir()
    ordered(hz, **more).write(run_folder)
    return run_folder


def elsewhere(folder, *gpus_):
    """What other processes need in their environment to find such GPUs."""
    nvml.install(folder)
    path = os.pathsep.join(filter(None, [str(folder), str(ROOT), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, nvml.VARIABLE: json.dumps(gpus_)}


def start(run_folder, *gpus_):
    """The sampler as a process of its own."""
    env = {**os.environ, **elsewhere(run_folder.path.parent, *gpus_)}
    return subprocess.Popen(
        [sys.executable, "-m", "nightsweep.jobs.telemetry.gpu.sampler", str(run_folder.path)], env=env
    )


def samples(run_folder):
    return run_folder.nvml(HOST).exists() and len(ticks(run_folder, 0)) > 5


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def sampled(run_folder, seconds=0.5, hz=10, meanwhile=lambda sampler: None):
    """Sample in this process; the rows."""
    sampler, stop = Sampler(run_folder, hz, Alert()), threading.Event()
    meanwhile(sampler)
    threading.Timer(seconds, stop.set).start()
    sampler.run(stop)
    return rows(run_folder)


def rows(run_folder, number=None):
    """The rows of the log, or of one GPU."""
    return [
        row
        for batch in log.batches(run_folder.nvml(HOST))
        for row in batch.to_pylist()
        if number is None or row["uuid"] == gpu(number)["uuid"]
    ]


def ticks(run_folder, number):
    """Monotonic times of a GPU's readings at the full rate, s."""
    return [row["mono_ns"] / 1e9 for row in rows(run_folder, number) if row["sm_clock_mhz"] is not None]


def told(run_folder):
    return read_lines(run_folder.events(HOST), dict)
