"""Sends the probe (probe.py) to some nodes and keeps the shared files that it reads; visits.py judges its output."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from snakemake_executor_plugin_submitit.query import environment

from nightsweep.jobs.slurm.doctor.cluster import Partition
from nightsweep.jobs.slurm.doctor.findings import Finding, arguments, fail, warn
from nightsweep.jobs.slurm.doctor.visits import QUEUE_S, SEEN_S, judge, parse

LIMIT_MIN = 2
DEADLINE_S = QUEUE_S + 60 * LIMIT_MIN + 60  # the controller looks at time limits every half minute
STAMP_INTERVAL_S = 0.02
MEMORY_MB = 2048  # importing torch takes more than the default of some clusters


def examine(where: Partition, account: str | None, wanted: int, folder: Path) -> Iterator[Finding]:
    """The findings of a probe on as many nodes as are wanted and can be had."""
    count = min(wanted, len(where.usable))
    if count < wanted:
        yield warn("nodes", f"nodes: {wanted} to be probed, {count} usable in {where.name}")
    if count <= 0:
        return
    with contextlib.ExitStack() as stack:
        try:
            made = tempfile.TemporaryDirectory(
                prefix=".nightsweep-doctor-", dir=folder.resolve(), ignore_cleanup_errors=True
            )
            scratch = Path(stack.enter_context(made))
            (scratch / "token").touch()
            stamp(scratch / "stamp", create=True)
        except OSError as error:
            yield fail("files", f"login node: cannot write in {folder.resolve()}: {error.strerror}")
            return
        text, backs = send(command(where, account, count, scratch), scratch)
    yield from judge(text, backs, count, folder.resolve(), where.gpus)


def command(where: Partition, account: str | None, count: int, scratch: Path) -> list[str]:
    """srun with the probe behind a shell that names the node even where this Python cannot run."""
    # A cluster that never set its memory in Slurm has 1 MB a node, and would refuse to give more.
    enough = min(node.memory_mb for node in where.usable) >= MEMORY_MB
    named = 'printf \'{"host": "%s"}\\n\' "${SLURMD_NODENAME:-$(hostname)}"; exec "$0" "$@"'
    return [
        "srun", "--label", "--job-name=nightsweep-doctor", f"--immediate={QUEUE_S}", f"--time={LIMIT_MIN}",
        f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--cpus-per-task=1", "--kill-on-bad-exit=0",
        *arguments(where.name, account, where.gpus),
        *([f"--mem={MEMORY_MB}"] if enough else []),
        "sh", "-c", named, sys.executable, "-m", "nightsweep.jobs.slurm.doctor.probe", str(scratch),
    ]  # fmt: skip


def send(srun: list[str], scratch: Path) -> tuple[str, dict[int, float]]:
    """Run the probe; what it printed, and for each task the age in ms of its file when it was first seen here."""
    backs: dict[int, float] = {}
    with tempfile.TemporaryFile("w+", errors="replace") as sink:
        wait(srun, sink, lambda: exchange(scratch, backs))
        sink.seek(0)
        text = sink.read()
    written = {task for task, visit in parse(text).items() if "lead_ms" in visit.parts.get("files", {})}
    end = time.monotonic() + SEEN_S
    while written - backs.keys() and time.monotonic() < end:
        time.sleep(STAMP_INTERVAL_S)
        look(scratch, backs)
    return text, backs


def wait(srun: list[str], sink: IO[str], meanwhile: Callable[[], object]) -> None:
    """Until srun has ended; it is ended when it takes too long, or when the doctor is interrupted."""
    end = time.monotonic() + DEADLINE_S
    process = subprocess.Popen(
        srun, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=environment(os.environ)
    )
    try:
        while process.poll() is None and time.monotonic() < end:
            meanwhile()
            time.sleep(STAMP_INTERVAL_S)
    finally:
        process.terminate()  # srun takes its job with it
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def exchange(scratch: Path, backs: dict[int, float]) -> None:
    stamp(scratch / "stamp")
    look(scratch, backs)


def stamp(path: Path, create: bool = False) -> None:
    # Rewritten in place: NFS looks at a file again when it is opened, at a renamed one only when its cache is old.
    with path.open("w" if create else "r+") as file:
        file.write(str(time.time_ns()))


def look(scratch: Path, backs: dict[int, float]) -> None:
    """Note the files of nodes that are seen for the first time."""
    for path in scratch.glob("back-*"):
        task = int(path.name.removeprefix("back-"))
        # A file server may name a file before it gives it; the next look is soon.
        with contextlib.suppress(OSError, ValueError):
            backs.setdefault(task, (time.time_ns() - int(path.read_text())) / 1e6)
