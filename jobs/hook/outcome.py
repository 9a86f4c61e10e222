"""What a watched script leaves: its steps and what its rank is, as jobs/rank/worker.py leaves them of its own ranks."""

from __future__ import annotations

import json
import resource
import socket
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .watch import Step, Watch


def write_outcome(watch: Watch) -> None:
    """Write steps-rR.jsonl and, last, rankR.result.json. Reads the device."""
    lines = [json.dumps(line(step)) + "\n" for step in watch.steps]
    watch.run_folder.steps(watch.rank).write_text("".join(lines))
    target = watch.run_folder.rank_file(watch.rank, "result.json")
    scratch = target.with_name(f".{target.name}")
    scratch.write_text(json.dumps(result(watch)))
    scratch.replace(target)


def line(step: Step) -> dict[str, Any]:
    """The line of a step."""
    device_ns = int(step.events[0].elapsed_time(step.events[1]) * 1e6) if len(step.events) == 2 else None
    losses = [float(loss) for loss in step.losses]
    return {
        "step": step.number,
        "phase": step.phase,
        "block": step.block,
        "start_ns": step.start_ns,
        "mono_ns": step.mono_ns,
        "end_ns": step.end_ns,
        "data_ns": step.data_ns,
        "device_ns": device_ns,
        "loss": sum(losses) / len(losses) if losses else None,
        "samples": step.samples,
        "tokens": step.tokens or None,
        **(step.memory or {}),
    }


def result(watch: Watch) -> dict[str, Any]:
    """What is known of the rank at its end."""
    import torch

    cuda = watch.device.type == "cuda"
    uuid = str(torch.cuda.get_device_properties(watch.device).uuid) if cuda else None
    return {
        "rank": watch.rank,
        "host": socket.gethostname(),
        "device": watch.device.type,
        "device_name": torch.cuda.get_device_name(watch.device) if cuda else None,
        "uuid": uuid if uuid is None or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}",
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "trainable_parameters": sum(watch.trainable.values()) or None,
        "window": watch.window,
        **watch.allocator.result(),
        "step_source": watch.source,
        "notes": list(dict.fromkeys(watch.notes)),
        "loader_workers": watch.loader_workers,
        "passes": max((len(step.losses) for step in watch.steps), default=0) or None,
        "places": watch.places,
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
    }
