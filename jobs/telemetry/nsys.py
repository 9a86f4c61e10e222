"""Nsight Systems: whether one is here and works, how a rank runs under it, and the export of its report."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from jobs.look import Look

PROBE_TIMEOUT_S = 60
EXPORT_TIMEOUT_S = 300


def probe() -> tuple[bool, str]:
    """Whether nsys can profile a program and export the report here, and a line that says which or why not."""
    if shutil.which("nsys") is None:
        return False, "no nsys on the PATH"
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "probe.nsys-rep"
        steps = [
            ["nsys", "profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "-o", str(report), "true"],
            ["nsys", "export", "--type=sqlite", "-o", str(report.with_suffix(".sqlite")), str(report)],
        ]
        for step in steps:
            try:
                done = subprocess.run(step, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, cwd=scratch)
            except subprocess.TimeoutExpired:
                return False, f"`{' '.join(step[:2])}` did not end within {PROBE_TIMEOUT_S} s"
            if done.returncode != 0 or not Path(step[-1] if step[1] == "export" else report).exists():
                text = (done.stderr + done.stdout).strip().splitlines() or ["no output"]
                return False, f"`{' '.join(step[:2])}` failed: {text[-1][:200]}"
    version = subprocess.run(["nsys", "--version"], capture_output=True, text=True).stdout.strip()
    return True, version.splitlines()[-1] if version else "nsys"


def profile_command(look: Look, rank: int) -> list[str]:
    """The prefix under which a rank runs. Few tables and no CPU sampling, so that the step is little disturbed; only
    the range that the step loop opens is captured."""
    return [
        "nsys", "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none",
        "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--kill=none",
        "--force-overwrite=true", "-o", str(look.trace(rank, "nsys-rep")),
    ]  # fmt: skip


def export(look: Look, rank: int) -> str | None:
    """Write trace-rR.sqlite beside the report; why not, or None."""
    report, target = look.trace(rank, "nsys-rep"), look.trace(rank, "sqlite")
    if not report.exists():
        return f"nsys left no report for rank {rank}"
    command = ["nsys", "export", "--type=sqlite", "--force-overwrite=true", "-o", str(target), str(report)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=EXPORT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"nsys export of rank {rank} did not end within {EXPORT_TIMEOUT_S} s"
    return None if done.returncode == 0 and target.exists() else f"nsys export of rank {rank} failed"
