"""What the doctor says: findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

OK, WARN, FAIL = "ok", "warn", "FAIL"


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


def arguments(partition: str, account: str | None, gpus: bool) -> Sequence[str]:
    """The options of sbatch and srun that say where; one GPU a node where there are GPUs, as the executor asks."""
    return [
        f"--partition={partition}",
        *([f"--account={account}"] if account else []),
        *(["--gpus-per-node=1"] if gpus else []),
    ]
