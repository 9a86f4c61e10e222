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

from jobs.record import json_lines
from jobs.record.folder import Look, write_json
from jobs.telemetry.gpu import log
from jobs.telemetry.gpu.sampler import Sampler
from tests.fakes import nvml
from tests.fakes.nvml import gpu

ROOT = Path(__file__).parents[3]
HOST = socket.gethostname()
SPLIT = {"migs": [["MIG-a1", 3], ["MIG-b2", 5]]}
"""Settings of a GPU that is split into MIG devices."""


def make_look(folder, hz=10):
    look = Look(folder / "timed.1")
    look.folder.mkdir()
    write_json(look.point_file, {"settings": {"workload": "image", "model": "mobilenet_v2", "nvml_hz": hz}})
    return look


def elsewhere(folder, *gpus_):
    """What other processes need in their environment to find such GPUs."""
    nvml.install(folder)
    return {"PYTHONPATH": f"{folder}:{ROOT}", nvml.VARIABLE: json.dumps(gpus_)}


def start(look, *gpus_, **environment):
    """The sampler as a process of its own."""
    env = {**os.environ, **elsewhere(look.folder.parent, *gpus_), **environment}
    return subprocess.Popen([sys.executable, "-m", "jobs.telemetry.gpu.sampler", str(look.folder)], env=env)


def samples(look):
    return look.nvml(HOST).exists() and len(ticks(look, 0)) > 5


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def sampled(look, seconds=0.5, hz=10, meanwhile=lambda sampler: None):
    """Sample in this process; the rows."""
    sampler, stop = Sampler(look, hz, None), threading.Event()
    meanwhile(sampler)
    threading.Timer(seconds, stop.set).start()
    sampler.run(stop)
    return rows(look)


def rows(look, number=None):
    """The rows of the log, or of one GPU."""
    return [
        row
        for batch in log.batches(look.nvml(HOST))
        for row in batch.to_pylist()
        if number is None or row["uuid"] == gpu(number)["uuid"]
    ]


def ticks(look, number):
    """Monotonic times of a GPU's readings at the full rate, s."""
    return [row["mono_ns"] / 1e9 for row in rows(look, number) if row["sm_clock_mhz"] is not None]


def told(look):
    return list(json_lines.read(look.events(HOST))) if look.events(HOST).exists() else []
