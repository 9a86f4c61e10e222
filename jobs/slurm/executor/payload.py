"""What submitit runs in the batch step: Snakemake's command for one job."""

from __future__ import annotations

import subprocess


def run(command: str, folder: str) -> int:
    """Run the shell command in the folder; its exit code."""
    return subprocess.run(["bash", "-c", command], cwd=folder).returncode
