"""What a record says of the host and the software."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from jobs.host import gpus

PACKAGES = ("torch", "deepspeed", "transformers", "peft", "snakemake", "submitit", "polars", "nvidia-ml-py")
ROOT = Path(__file__).parents[2]


def output_of(*command: str, cwd: Path | None = None) -> str | None:
    """What a command prints, or None where it is absent or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=cwd)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def topology() -> str | None:
    """The matrix of links between GPUs and NICs as nvidia-smi draws it, without its colours and its legend."""
    told = output_of("nvidia-smi", "topo", "-m")
    return re.sub(r"\x1b\[[0-9;]*m", "", told).split("\n\nLegend:")[0].rstrip() if told else None


def visible_gpus() -> list[list[str]]:
    """Index, UUID, name, memory in MiB and driver of the GPUs that CUDA_VISIBLE_DEVICES leaves, as nvidia-smi tells."""
    query = output_of(
        "nvidia-smi", "--query-gpu=index,uuid,name,memory.total,driver_version", "--format=csv,noheader,nounits"
    )
    rows = [[cell.strip() for cell in line.split(",")] for line in (query or "").splitlines()]
    return [row for row in rows if gpus.visible(int(row[0]), row[1])]


def host() -> dict[str, Any]:
    """This host, its GPUs and the driver."""
    rows = visible_gpus()
    return {
        "hostname": socket.gethostname(),
        "cpu_model": cpu_model(),
        "cpu_cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "gpus": [{"index": int(r[0]), "uuid": r[1], "name": r[2], "memory_bytes": int(r[3]) << 20} for r in rows],
        "driver": rows[0][4] if rows else None,
        "topology": topology() if rows else None,
    }


def package_versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def cuda_versions() -> dict[str, str | None]:
    """What torch was built with."""
    import torch

    return {"cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}


def software(nsys: str | None, cuda: bool) -> dict[str, Any]:
    """Versions, those of CUDA where the ranks use it, and the commit that ran."""
    commit = output_of("git", "rev-parse", "HEAD", cwd=ROOT)
    return {
        "git_commit": commit,
        "git_dirty": bool(output_of("git", "status", "--porcelain", cwd=ROOT)) if commit else None,
        "python": sys.version.split()[0],
        "packages": package_versions(),
        **(cuda_versions() if cuda else {"cuda": None, "nccl": None}),
        "nsys": nsys,
    }


def slurm() -> dict[str, Any] | None:
    if "SLURM_JOB_ID" not in os.environ:
        return None
    names = {"job_id": "SLURM_JOB_ID", "partition": "SLURM_JOB_PARTITION", "nodelist": "SLURM_JOB_NODELIST",
             "restart_count": "SLURM_RESTART_COUNT"}  # fmt: skip
    return {key: os.environ.get(name) for key, name in names.items()}
