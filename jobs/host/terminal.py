"""Texts of others, such as messages and names of kernels, on a terminal: nothing in them moves its cursor, sets its
colours or its title."""

from __future__ import annotations

import re
from typing import Any, TextIO


def harmless(text: str) -> str:
    """The text with `?` for what a terminal would obey, and for marks that turn the direction of what is shown."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else " " if c.isspace() else "?" for c in text)


def last_line(text: str) -> str:
    """The last line with a word in it; frames of stars are none."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    return lines[-1][:300] if lines else ""


class HarmlessStream:
    """A stream that passes all texts on so."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(harmless(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
