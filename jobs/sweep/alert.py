"""When an operator is alerted to a GPU that does little, as a sweep asks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Alert:
    """When a GPU that does little is reported: its SMs were active below `below_percent` of the time for `for_s`
    seconds on end (without GPM: its utilisation). `command` is then run by the node's shell, once an episode, with the
    event as JSON in $NIGHTSWEEP_EVENT."""

    below_percent: float = 5.0
    for_s: float = 60.0
    command: str | None = None
