"""What a watched script leaves: its steps and what its rank is, as jobs/rank/worker.py leaves them of its own ranks."""

from __future__ import annotations

import json
import math
import os
import resource
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from ..host.gpus import full_uuid
from ..point.environment import ALLOCATORS
from ..record import notes as said
from ..record.folder import RunFolder
from .claim import was_contested

if TYPE_CHECKING:
    from .step import Step
    from .watch import Watch


OTHERS_S = 60.0
"""How long a rank that is done waits for the others before it ends."""


def write_outcome(watch: Watch) -> None:
    """Write steps-rR.jsonl and, last, rankR.result.json of the run that the rank has come to the end of. Reads the
    device."""
    folder = watch.folder
    lines = [json.dumps(line(step)) + "\n" for step in watch.steps[watch.written :]]
    watch.written = len(watch.steps)
    folder.steps(watch.rank).write_text("".join(lines))
    target = folder.rank_file(watch.rank, "result.json")
    scratch = target.with_name(f".{target.name}")
    scratch.write_text(json.dumps(result(watch)))
    scratch.replace(target)


def wait_for_outcomes(folder: RunFolder, start: RunFolder) -> None:
    """Until all ranks have written theirs to this folder, or will not: one that is gone would take the connections of
    the others with it. `start`: where a rank whose steps are no longer watched, or that has ended, says so."""
    torch = sys.modules.get("torch")
    distributed = torch and torch.distributed.is_available() and torch.distributed.is_initialized()
    missing = set(range(torch.distributed.get_world_size() if torch and distributed else 1))
    deadline = time.monotonic() + OTHERS_S
    while missing and time.monotonic() < deadline:
        # A network file system goes on to deny a file that was asked for before another node wrote it: list them.
        there = {*folder.path.glob("rank*.result.json"), *start.path.glob("rank*.few.json")}
        there |= set(start.path.glob("rank*.exit.json"))
        missing -= {int(path.name.partition(".")[0].removeprefix("rank")) for path in there}
        time.sleep(0.01)


def line(step: Step) -> dict[str, Any]:
    """The line of a step."""
    device_ns = int(step.events[0].elapsed_time(step.events[1]) * 1e6) if len(step.events) == 2 else None
    losses = [float(loss) for loss in step.losses]
    names = ("phase", "block", "start_ns", "mono_ns", "end_ns", "data_ns", "samples")
    return {
        "step": step.number,
        **{name: getattr(step, name) for name in names},
        "device_ns": device_ns,
        "loss": sum(losses) / len(losses) if losses else None,
        "tokens": step.tokens or None,
        **(step.memory or {}),
    }


def lost_loss(watch: Watch) -> list[str]:
    """A note where the loss is none at the end. With a gradient scaler, steps before may have none and be left out."""
    last = next((step.losses for step in reversed(watch.steps) if step.losses), [])
    bad = next((loss for loss in map(float, last) if not math.isfinite(loss)), None)
    return [] if bad is None else [f"the script's loss is {bad} in its last step"]


def contested(watch: Watch) -> list[str]:
    """A note where other processes trained as this rank."""
    there = was_contested(watch.run_folder, watch.rank)
    return [f"several processes trained as rank {watch.rank} at a time: the first counts"] if there else []


def without_effect(watch: Watch) -> list[str]:
    """A note for each switch whose setting is another one at the end, as by the script, or by which nothing changed.
    (jobs/hook/switches.py notes those that wait for something.)"""
    torch, settings = sys.modules.get("torch"), watch.settings
    compiler = sys.modules.get("torch._dynamo.utils")
    wanted = {
        "cpu_threads": ("OMP_NUM_THREADS", str(settings.get("cpu_threads"))),
        "allocator": ("PYTORCH_CUDA_ALLOC_CONF", ALLOCATORS.get(settings.get("allocator"))),
    }
    found = [name for name, (variable, value) in wanted.items() if os.environ.get(variable) != value]
    found = [name for name in found if settings.get(name) is not None]
    if torch and settings.get("cudnn_benchmark") not in (None, torch.backends.cudnn.benchmark):
        found.append("cudnn_benchmark")
    if torch and settings.get("precision") == "tf32":
        try:
            on = torch.get_float32_matmul_precision() != "highest" and torch.backends.cudnn.allow_tf32
        except RuntimeError:  # of a part of it, by PyTorch's newer way
            on = False
        if not on:
            found.append("precision")
    notes = [f"{said.without_effect(name)}: the script or its launcher sets it otherwise" for name in found]
    if settings.get("compile") not in (None, "none") and not (compiler and compiler.counters["stats"]):
        notes.append(f"{said.without_effect('compile')}: nothing was compiled")
    return notes


def result(watch: Watch) -> dict[str, Any]:
    """What is known of the rank at its end."""
    torch, device = sys.modules.get("torch"), watch.device
    uuid = str(torch.cuda.get_device_properties(device).uuid) if torch and device else None
    return {
        "rank": watch.rank,
        "host": socket.gethostname(),
        "device": "cuda" if device else "cpu",
        "device_name": torch.cuda.get_device_name(device) if torch and device else None,
        "uuid": uuid and full_uuid(uuid),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "trainable_parameters": sum(watch.trainable.values()) or None,
        "weights_layout": watch.weights_layout,
        "window": watch.window,
        **(watch.allocator.result() if watch.allocator else {}),
        "step_source": watch.source,
        "ended_early": watch.left > 0,
        "notes": list(dict.fromkeys([*watch.notes, *lost_loss(watch), *contested(watch), *without_effect(watch)])),
        "loader_workers": watch.loader_workers,
        "passes": max((len(step.losses) for step in watch.steps), default=0) or None,
        "places": watch.places,
    }
