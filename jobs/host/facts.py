"""What a record says of the host and the software."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil
from msgspec import Struct, field

from nightsweep.jobs.host import gpus

PACKAGES = ("torch", "deepspeed", "transformers", "peft", "snakemake", "submitit", "polars", "nvidia-ml-py")
ROOT = Path(__file__).parents[3]
NOT_RUN = (":!data", ":!docs", ":!tests/data")
"""Folders whose changes are none of what a point runs."""


class HostGpu(Struct, frozen=True, kw_only=True):
    """A GPU of a host."""

    index: int | None = None
    """As nvidia-smi counts."""
    uuid: str | None = None
    """As NVML writes it."""
    name: str | None = None
    """Model."""
    memory_bytes: int | None = None
    """Size of its memory."""


class Host(Struct, frozen=True, kw_only=True):
    """facts-H.json: what a node is. Each is an entry of the record's `hosts`."""

    hostname: str | None = None
    """Host name."""
    cpu_model: str | None = None
    """As /proc/cpuinfo names it."""
    cpu_cores: int | None = None
    """Logical cores of the whole host."""
    memory_bytes: int | None = None
    """Memory of the whole host."""
    kernel: str | None = None
    """Release of Linux."""
    gpus: list[HostGpu] = field(default_factory=list)
    """Those of the job."""
    driver: str | None = None
    """NVIDIA's driver; null without GPUs."""
    topology: str | None = None
    """Links between GPUs, as `nvidia-smi topo -m` draws them."""


class Software(Struct, frozen=True, kw_only=True):
    """Versions of what ran."""

    git_commit: str | None = None
    """The commit of Nightsweep that ran."""
    git_dirty: bool | None = None
    """Whether there were changes that were not committed, but for those in `data`, `docs` and `tests/data`, which no
    point runs."""
    python: str | None = None
    """Version of Python."""
    packages: dict[str, str | None] = field(default_factory=dict)
    """Versions by name; null for one that is not installed."""
    cuda: str | None = None
    """CUDA that torch was built with; null where ranks compute on the CPU."""
    nccl: str | None = None
    """NCCL that torch was built with; null likewise."""
    nsys: str | None = None
    """As `nsys --version` prints it; null where it was not tried or does not work."""


class SlurmJob(Struct, frozen=True, kw_only=True):
    """The Slurm job, as its environment names it."""

    job_id: str | None = None
    """$SLURM_JOB_ID."""
    partition: str | None = None
    """$SLURM_JOB_PARTITION."""
    nodelist: str | None = None
    """$SLURM_JOB_NODELIST."""
    restart_count: str | None = None
    """$SLURM_RESTART_COUNT."""


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
    matrix = output_of("nvidia-smi", "topo", "-m")
    return re.sub(r"\x1b\[[0-9;]*m", "", matrix).split("\n\nLegend:")[0].rstrip() if matrix else None


def visible_gpus() -> list[list[str]]:
    """Index, UUID, name, memory in MiB and driver of the GPUs that CUDA_VISIBLE_DEVICES leaves, as nvidia-smi tells."""
    query = output_of(
        "nvidia-smi", "--query-gpu=index,uuid,name,memory.total,driver_version", "--format=csv,noheader,nounits"
    )
    rows = [[cell.strip() for cell in line.split(",")] for line in (query or "").splitlines()]
    return [row for row in rows if gpus.visible(int(row[0]), row[1])]


def host() -> Host:
    """This host, its GPUs and the driver."""
    rows = visible_gpus()
    return Host(
        hostname=socket.gethostname(),
        cpu_model=cpu_model(),
        cpu_cores=os.cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
        kernel=platform.release(),
        gpus=[HostGpu(index=int(r[0]), uuid=r[1], name=r[2], memory_bytes=int(r[3]) << 20) for r in rows],
        driver=rows[0][4] if rows else None,
        topology=topology() if rows else None,
    )


def package_versions(names: Iterable[str] = PACKAGES) -> dict[str, str | None]:
    """Versions by name; None for one that is not installed."""
    import importlib.metadata  # which takes longer than all else here, and few who import this module ask

    versions: dict[str, str | None] = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def software(nsys: str | None, uses_cuda: bool) -> Software:
    """Versions, those of CUDA where the ranks use it, and the commit that ran."""
    commit = output_of("git", "rev-parse", "HEAD", cwd=ROOT)
    changes = output_of("git", "status", "--porcelain", "--", ".", *NOT_RUN, cwd=ROOT) if commit else None
    cuda = nccl = None
    if uses_cuda:
        import torch

        cuda, nccl = torch.version.cuda, ".".join(map(str, torch.cuda.nccl.version()))
    return Software(
        git_commit=commit,
        git_dirty=None if changes is None else bool(changes),
        python=sys.version.split()[0],
        packages=package_versions(),
        cuda=cuda,
        nccl=nccl,
        nsys=nsys,
    )


def slurm() -> SlurmJob | None:
    """The Slurm job of this process; None outside of Slurm."""
    if "SLURM_JOB_ID" not in os.environ:
        return None
    names = {"job_id": "SLURM_JOB_ID", "partition": "SLURM_JOB_PARTITION", "nodelist": "SLURM_JOB_NODELIST",
             "restart_count": "SLURM_RESTART_COUNT"}  # fmt: skip
    return SlurmJob(**{key: os.environ.get(name) for key, name in names.items()})
