"""Reads JSON lines, one object a line, as logs of a launch are written.

A job may be killed within a line, and one that was started again goes on behind it: what is no whole object is left
out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def parsed(text: str) -> Iterator[dict[str, Any]]:
    """The objects of a text."""
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file. Raises OSError where it cannot be read."""
    return parsed(path.read_text(errors="replace"))
