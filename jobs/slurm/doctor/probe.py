"""Runs on a node, sent there by nodes.py, and prints one JSON line a part, so that a part that hangs hides no other.

    srun python -m nightsweep.jobs.slurm.doctor.probe FOLDER  # FOLDER holds the login node's files `token` and `stamp`

The clock: the login node rewrites `stamp` with its own time all the while. A read gives this clock minus the stamp,
which is the clock's lead plus the age of what was read; the least of some reads bounds the lead from above. The file
written back bounds it from below in the same way. A slow file system makes the bounds wide, never wrong.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nightsweep.jobs.host import gpus
from nightsweep.jobs.host.terminal import last_line
from nightsweep.jobs.telemetry.gpu import gpm
from nightsweep.jobs.telemetry.trace import nsys

TOKEN_TIMEOUT_S = 60
IMPORT_S = 45
STAMP_READS = 20
STAMP_INTERVAL_S = 0.05


def files(folder: Path) -> dict[str, Any]:
    """How long until the login node's token is seen here, the clock against its stamps, and a file for it to see."""
    start = time.monotonic()
    while not (folder / "token").exists():
        if time.monotonic() - start > TOKEN_TIMEOUT_S or not folder.parent.is_dir():
            return {"sees_parent": folder.parent.is_dir(), "seen_s": None}
        time.sleep(STAMP_INTERVAL_S)
    seen_s = time.monotonic() - start
    leads = []
    for _ in range(STAMP_READS):
        text = (folder / "stamp").read_text()
        leads.append(time.time_ns() - int(text))
        time.sleep(STAMP_INTERVAL_S)
    back = folder / f"back-{os.environ.get('SLURM_PROCID', '0')}"
    hidden = folder / f".{back.name}"
    hidden.write_text(str(time.time_ns()))
    hidden.rename(back)
    return {"seen_s": seen_s, "lead_ms": min(leads) / 1e6}


def limits(folder: Path) -> dict[str, Any]:
    place = folder if folder.is_dir() else folder.parent
    temporary = tempfile.gettempdir()
    shm = os.statvfs("/dev/shm")
    return {
        "python": platform.python_version(),
        "free_bytes": shutil.disk_usage(place).free if place.is_dir() else None,
        "temporary": temporary,
        "temporary_free_bytes": shutil.disk_usage(temporary).free,
        "shm_bytes": shm.f_blocks * shm.f_frsize,
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }


def torch_part() -> dict[str, Any]:
    import torch

    return {"version": torch.__version__, "cuda": torch.version.cuda, "gpus": torch.cuda.device_count()}


def nvml_part() -> dict[str, Any]:
    """Whether NVML answers, the driver, and whether GPM, its source of SM activity, does on every GPU."""
    answers, text = gpus.probe()
    if not answers:
        return {"answers": False, "text": text}
    import pynvml

    driver = pynvml.nvmlSystemGetDriverVersion()
    return {"answers": True, "text": text, "driver": driver, "gpm": not any(map(gpm.refusal, gpus.job_gpus()))}


def nsys_part() -> dict[str, Any]:
    found = nsys.probe()
    return {"answers": found.works, "text": found.text}


def ranks_part() -> dict[str, Any]:
    """Whether ranks can be forked from the process that imports for all of them."""
    command = [sys.executable, "-m", "nightsweep.jobs.rank.server"]
    null, pipe, joined = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    try:
        done = subprocess.run(
            command, stdin=null, stdout=pipe, stderr=joined, text=True, errors="replace", timeout=IMPORT_S
        )
    except subprocess.TimeoutExpired:
        return {"forked": False, "text": f"imports take longer than {IMPORT_S} s"}
    text = last_line(done.stdout) or f"it ended with {done.returncode}"
    return {"forked": "ready" in done.stdout.splitlines(), "text": text}


def tell(name: str, part: Callable[[], dict[str, Any]]) -> None:
    """Print a part; a part that breaks says how, whatever it was."""
    try:
        content = part()
    except Exception as error:
        content = {"error": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps({name: content}), flush=True)


def main(folder: Path) -> None:
    tell("files", lambda: files(folder))
    tell("limits", lambda: limits(folder))
    tell("nvml", nvml_part)
    tell("torch", torch_part)
    tell("nsys", nsys_part)
    tell("ranks", ranks_part)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
