"""Asks Slurm: the one place that runs its commands, and that reads what several of them print alike."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

TIMEOUT_S = 30.0
_OWN_DEFAULTS = ("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SLURM_TIME_FORMAT")
_OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_")


class Unreachable(Exception):
    """Slurm does not answer; the text holds its own words."""


@dataclass(frozen=True)
class Answer:
    """What a command left: exit status (124: no answer in time, 127: no such command), output and complaints."""

    status: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """Its last line of complaint."""
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


def read(*command: str) -> str:
    """What a command prints. Raises Unreachable where it fails."""
    answer = ask(*command)
    if answer.status:
        raise Unreachable(f"{command[0]}: {answer.complaint}")
    return answer.out


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a Slurm command.

    A user's own filters and formats (SQUEUE_PARTITION, SLURM_TIME_FORMAT) would change what a query prints. Inside a
    job, Slurm's variables would turn a new job into a step of that one; outside they are defaults that the user has
    chosen, such as SLURM_ACCOUNT.
    """
    foreign = _OWN_DEFAULTS + (_OF_A_JOB if "SLURM_JOB_ID" in own else ())
    kept = {key: value for key, value in own.items() if key == "SLURM_CONF" or not key.startswith(foreign)}
    return kept | {"SLURM_BITSTR_LEN": "0"}  # all elements of an array, however many


def parse_config(text: str) -> dict[str, str]:
    """`scontrol show config` as a mapping; a repeated key keeps its first value."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            found.setdefault(key.strip(), value.strip())
    return found


def whole(config: Mapping[str, str], key: str) -> int | None:
    """The number that a setting begins with (`30 sec`); None where there is none."""
    found = re.match(r"\d+", config.get(key, ""))
    return int(found[0]) if found else None


def parse_minutes(text: str) -> float:
    """Minutes of a time as Slurm writes and reads it: minutes, minutes:seconds, hours:minutes:seconds, days-hours,
    days-hours:minutes or days-hours:minutes:seconds. Raises ValueError."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}(\.\d+)?", text):
        raise ValueError(f"{text!r} is no time of Slurm's")
    days, _, clock = text.rpartition("-")
    parts = [float(part) for part in clock.split(":")]
    if not days and len(parts) < 3:
        parts = [0.0, *parts]
    hours, minutes, seconds = [*parts, 0.0, 0.0][:3]
    return (int(days or 0) * 24 + hours) * 60 + minutes + seconds / 60


def has_accounting(config: Mapping[str, str]) -> bool:
    """Whether sacct can be asked."""
    return config.get("AccountingStorageType", "").endswith(("slurmdbd", "mysql"))
