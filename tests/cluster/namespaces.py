"""The UTS namespaces that the nodes of a private Slurm are, and the processes in them."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path


def namespace_path(process: int | str) -> Path:
    return Path(f"/proc/{process}/ns/uts")


def namespace(process: int | str) -> int | None:
    """Number of the process's UTS namespace; None when it has ended or is not ours to see."""
    try:
        return namespace_path(process).stat().st_ino
    except OSError:
        return None


def kill_all(namespaces: set[int]) -> None:
    """Kills what lives in these UTS namespaces, again until there is nothing: a process may fork while this looks."""
    targets = namespaces - {namespace("self")}
    for _ in range(100):
        names = [path.name for path in Path("/proc").glob("[0-9]*")]
        found = [int(name) for name in names if namespace(name) in targets]
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
