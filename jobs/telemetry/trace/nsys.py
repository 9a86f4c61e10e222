"""Nsight Systems: whether one is here and works, how a rank runs under it, and the export of its report."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.record.folder import RunFolder

PROBE_TIMEOUT_S = 60
EXPORT_TIMEOUT_S = 300
OLDEST = (2023, 1)
OWNER_VARIABLE = "NIGHTSWEEP_NSYS_OWNER"
"""Marks the processes of one nsys: its agent and the program under it have sessions of their own, and init for a parent
once nsys is gone."""

# Few tables and no CPU sampling, so that the step is little disturbed; only the range that the step loop opens is
# captured, and nsys leaves the ranks alone when it ends.
_COMMON = (
    "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--kill=none", "--force-overwrite=true",
)  # fmt: skip
_PRESETS = {
    "light": ("--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none"),
    # Backtraces of CUDA calls, Python's too, need CPU sampling to be on.
    "deep": (
        "--trace=cuda,nvtx,cublas,cudnn,osrt", "--sample=process-tree", "--cpuctxsw=process-tree",
        "--cudabacktrace=kernel,memory,sync", "--python-backtrace=cuda", "--cuda-memory-usage=true",
    ),
}  # fmt: skip
BLOBS = "--include-blobs=true"
"""Payloads of NVTX ranges, too: NCCL tells its message sizes there."""
_GPU_METRICS = "--gpu-metrics-devices=cuda-visible"


@dataclass(frozen=True)
class Probe:
    """What was found: whether nsys can profile and export, the version or why not, and why GPU metrics cannot be had
    (None: they can, or nobody asked)."""

    works: bool
    text: str
    no_gpu_metrics: str | None = None


def probe(preset: str = "light") -> Probe:
    """Try nsys on a program that ends at once."""
    if shutil.which("nsys") is None:
        return Probe(False, "no nsys on the PATH")
    printed, why = _run("nsys", "--version")
    version = printed.splitlines()[-1].strip() if printed else ""
    if why or not re.search(r"\d", version):
        return Probe(False, why or "`nsys --version` says nothing")
    numbers = re.search(r"(\d{4})\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST:
        return Probe(False, f"{version} is older than {OLDEST[0]}.{OLDEST[1]}")
    why = _try_profile(_PRESETS[preset])
    if why:
        return Probe(False, why)
    metrics = _try_profile((*_PRESETS["light"], _GPU_METRICS)) if preset == "deep" else None
    return Probe(True, version, metrics)


def _try_profile(flags: Sequence[str]) -> str | None:
    """Profile and export; why that does not work, or None."""
    with tempfile.TemporaryDirectory() as scratch:
        report, table = Path(scratch, "probe.nsys-rep"), Path(scratch, "probe.sqlite")
        _, why = _run("nsys", "profile", *flags, "-o", str(report), "true", cwd=scratch)
        if why or not report.exists():
            return why or "`nsys profile` left no report: is its importer whole?"
        return export_report(report, table, "sqlite", PROBE_TIMEOUT_S)


def _run(*command: str, cwd: str | None = None, timeout_s: float | None = None) -> tuple[str, str | None]:
    """What a command prints, and why it failed, in one line."""
    name, limit = " ".join(command[:2]), PROBE_TIMEOUT_S if timeout_s is None else timeout_s
    owner = uuid.uuid4().hex
    env = {**os.environ, OWNER_VARIABLE: owner}
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", cwd=cwd, env=env
        )
    except OSError as error:
        return "", f"`{name}` cannot be run: {error.strerror}"
    with process:
        try:
            printed, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            end(owner)
            return "", f"`{name}` did not end within {limit:g} s"
    return (
        (printed.strip(), None) if process.returncode == 0 else ("", f"`{name}` failed: {_complaint(printed + errors)}")
    )


def _complaint(text: str) -> str:
    """The line that says error; without one all before the usage text, which is how nsys refuses a flag."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no output"]
    head = list(itertools.takewhile(lambda line: not line.lower().startswith("usage:"), lines)) or lines
    plain = " ".join(head) if len(head) < len(lines) else lines[-1]
    return next((line for line in head if "error" in line.lower()), plain)[:200]


def processes(owner: str) -> list[psutil.Process]:
    """The living processes of an nsys that was started with this owner in its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(OWNER_VARIABLE) == owner:
                found.append(process)
    return found


def end(owner: str) -> None:
    for _ in range(2):  # again, for what one of them started meanwhile
        for process in processes(owner):
            with contextlib.suppress(psutil.Error):
                process.kill()


def ask_for_stacks(owner: str) -> None:
    """SIGUSR1 to the rank itself: nsys would die of it, and does not hand it on."""
    for process in processes(owner):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[1:3] == ["-m", "nightsweep.jobs.rank.worker"]:
                process.send_signal(signal.SIGUSR1)


def profile_command(run_folder: RunFolder, rank: int, point: Point, *, gpu_metrics: bool = True) -> list[str]:
    """The prefix under which a rank runs. GPU metrics are a whole GPU's, so one rank a node takes those of all, unless
    nsys cannot have them."""
    flags = [*_PRESETS[point.trace_preset]]
    first = rank % point.processes_per_node == 0
    if point.trace_preset == "deep" and first and gpu_metrics:
        flags.append(_GPU_METRICS)
    if point.records_graphs:
        flags.append("--cuda-graph-trace=node")  # else a graph is one row, without its kernels
    return [
        "nsys", "profile", *flags, *_COMMON, "-o", str(run_folder.trace(rank, "nsys-rep")), *_as_masked_as_here()
    ]  # fmt: skip


def _as_masked_as_here() -> list[str]:
    """nsys starts its program with umask 0: whatever a rank writes could be changed by everybody."""
    status = Path("/proc/self/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("Umask:"))
    return ["sh", "-c", 'umask "$0" && exec "$@"', mask]


def export(run_folder: RunFolder, ranks: Sequence[int], *, keep_report: bool) -> str | None:
    """Write trace-rR.sqlite beside each rank's report; the first reason why not, or None."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        problems = list(pool.map(lambda rank: _export(run_folder, rank), ranks))
    found = next(filter(None, problems), None)
    if found is None and not keep_report:
        for rank in ranks:
            run_folder.trace(rank, "nsys-rep").unlink()
    return found


def _export(run_folder: RunFolder, rank: int) -> str | None:
    report = run_folder.trace(rank, "nsys-rep")
    if not report.exists():
        return f"nsys left no report for rank {rank}"
    why = export_report(report, run_folder.trace(rank, "sqlite"), "sqlite", EXPORT_TIMEOUT_S)
    return f"rank {rank}: {why}" if why else None


def export_report(report: Path, target: Path, kind: str, timeout_s: float) -> str | None:
    """Export a report; why that does not work, in one line, or None. `kind`: as nsys names it."""
    command = ["nsys", "export", f"--type={kind}", "--force-overwrite=true", "-o", str(target), str(report)]
    _, why = _run(*command, BLOBS, timeout_s=timeout_s)
    if why and BLOBS in why:  # an nsys that does not know it, such as 2023.4
        _, why = _run(*command, timeout_s=timeout_s)
    return why or (None if target.exists() else "`nsys export` left no file")
