"""What the doctor says, and for how long it waits for an answer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from snakemake_executor_plugin_submitit import query

OK, WARN, FAIL = "ok", "warn", "FAIL"
ask = functools.partial(query.ask, timeout_s=10.0)
"""Sooner than where jobs depend on the answer: a person waits."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line: how bad it is, which check said it, and the words."""

    level: str
    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.level:<5} {self.text}"


ok, warn, fail = (functools.partial(Finding, level) for level in (OK, WARN, FAIL))


def arguments(partition: str, account: str | None, gpus: bool) -> Sequence[str]:
    """The options of sbatch and srun that say where; one GPU a node where there are GPUs, as the executor asks."""
    return [
        f"--partition={partition}",
        *([f"--account={account}"] if account else []),
        *(["--gpus-per-node=1"] if gpus else []),
    ]
