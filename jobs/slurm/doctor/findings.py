"""What the doctor says, and how it asks: findings, and commands that cannot hang."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from collections.abc import Mapping, Sequence

OK, WARN, FAIL = "ok", "warn", "FAIL"
TIMEOUT_S = 10


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line: how bad it is, which check said it, and the words."""

    level: str
    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.level:<5} {self.text}"


def ok(check: str, text: str) -> Finding:
    return Finding(OK, check, text)


def warn(check: str, text: str) -> Finding:
    return Finding(WARN, check, text)


def fail(check: str, text: str) -> Finding:
    return Finding(FAIL, check, text)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a command left."""

    status: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """Its last line of complaint, for a finding."""
        return last_line(self.err or self.out) or f"exit status {self.status}, without a word"


def last_line(text: str) -> str:
    """The last line with a word in it; frames of stars are none."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    return lines[-1][:300] if lines else ""


def ask(*command: str, timeout_s: float = TIMEOUT_S) -> Answer:
    """Run a command that may be missing, fail or hang."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, env=environment(os.environ)
        )
    except subprocess.TimeoutExpired:
        return Answer(124, "", f"`{' '.join(command[:2])}` did not answer within {timeout_s:g} s")
    except OSError as error:
        return Answer(127, "", f"{command[0]}: {error.strerror}")
    return Answer(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a Slurm command. Inside a job, Slurm's variables would turn a new job into a step of that one;
    outside, they are the user's own defaults, such as SLURM_ACCOUNT."""
    if "SLURM_JOB_ID" not in own:
        return dict(own)
    return {
        key: value
        for key, value in own.items()
        if key == "SLURM_CONF" or not key.startswith(("SLURM_", "SLURMD_", "SRUN_"))
    }


def arguments(partition: str, account: str | None, gpus: bool) -> Sequence[str]:
    """The options of sbatch and srun that say where; one GPU a node where there are GPUs, as the executor asks."""
    return [
        f"--partition={partition}",
        *([f"--account={account}"] if account else []),
        *(["--gpus-per-node=1"] if gpus else []),
    ]
