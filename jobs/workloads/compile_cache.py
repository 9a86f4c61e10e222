"""What torch.compile makes, kept between starts: graphs and kernels in the cache folder, and how many were found there.

torch keeps them in a temporary folder, which on a cluster often lasts no longer than the job. Its own keys tell graphs,
settings and GPUs apart, and it writes each file under another name first, so ranks and nodes share a folder. One for
each software and hardware (compile/NAME) keeps what those keys leave out apart, such as a CPU's instructions, and lets
old ones be deleted.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import platform
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from nightsweep.jobs.host import cache, private
from nightsweep.jobs.host.facts import cpu_model
from nightsweep.jobs.point.point import Point

INDUCTOR, TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"


def use(point: Point) -> None:
    """Let this process keep what it compiles in the cache folder, where the point compiles. Folders that the user's
    environment names are left alone. Where there is no folder of this user's alone in which files can be locked, what
    is compiled lasts as long as this process.
    Call it once the rank's GPU is the current device, and before anything is compiled."""
    if point.compile == "none":
        return
    if (given := os.environ.get(INDUCTOR)) and not is_default(given):
        return
    try:
        folder = cache.folder() / "compile" / name()
        private.make(folder)  # it is code
        with (folder / ".lock").open("w") as lock:  # torch locks files there, too, which not every file system lets it
            fcntl.flock(lock, fcntl.LOCK_SH)
    except (OSError, RuntimeError, private.NotPrivate):
        folder = Path(tempfile.mkdtemp(prefix="nightsweep-compile-"))  # torch's is one that others may make first
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[INDUCTOR] = str(folder)
    os.environ.setdefault(TRITON, str(folder / "triton"))


def is_default(folder: str) -> bool:
    """Whether torch has named this folder itself, as it does when some of its modules are imported."""
    path = Path(folder)
    return path.parent == Path(tempfile.gettempdir()) and path.name.startswith("torchinductor_")


def name() -> str:
    """A folder's name for this software and hardware: the versions of PyTorch, Python and CUDA, the GPU and its compute
    capability where there is one, and the CPU."""
    import torch

    known = [f"torch-{torch.__version__}", f"python-{platform.python_version()}"]
    if torch.cuda.is_available():
        capability = "{}.{}".format(*torch.cuda.get_device_capability())
        known += [f"cuda-{torch.version.cuda}", torch.cuda.get_device_name(), capability]
    return re.sub(r"[^\w.+-]+", "-", "-".join([*known, cpu_model()]))


def counts() -> dict[str, int]:
    """Graphs that this process read from the cache, and those that it compiled, as fields of RankResult; none where
    nothing has been compiled. PyTorch has no public name for these counters: a version without them leaves none."""
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    inductor = counters.get("inductor", {})
    hits, *compiled = (inductor.get(f"fxgraph_cache_{end}", 0) for end in ("hit", "miss", "bypass"))
    if not hits and not any(compiled):
        return {}
    return {"compile_cache_hits": hits, "compile_cache_misses": sum(compiled)}
