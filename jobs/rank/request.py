"""What a launcher asks of the servers of its nodes (jobs/rank/server.py): a line of JSON each."""

from __future__ import annotations

from msgspec import Struct


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A start of a node's ranks, or a signal to them."""

    folder: str = ""
    """Of the run to start; empty: none."""
    ranks: int = 0
    """On each node."""
    environment: dict[str, str] = {}
    """Of this start: where its ranks meet, and how many they are."""
    signal: int = 0
    """For the supervisors that run; 0: none."""
