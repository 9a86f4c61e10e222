"""What a submitted job runs."""

from __future__ import annotations

import atexit
import os
import subprocess


def run(command: str) -> int:
    """Run a shell command; its exit code, with which this process ends too, so that a failed job is FAILED for Slurm.

    Not before its end: submitit first writes down what is returned here.
    """
    code = subprocess.call(["bash", "-c", command])
    if code:
        atexit.register(os._exit, code if code > 0 else 128 - code)
    return code
