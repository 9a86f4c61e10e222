"""The text of a Kineto trace as a stream: its events block by block, then its metadata.

Memory stays at the size of a few blocks, however large the file. A block is cut at the last `}, {` in it and decoded
as one array. Such a cut may lie inside an event or a string, so it is checked: an event ends there only if the text,
closed there, is a valid array. Where no cut of a block is valid (the end of the list, or text that is not JSON), events
are decoded one by one.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

_PIECE, _BLOCK = 1 << 20, 4 << 20
_STEP = 64 << 10
"""Shortest text that is worth decoding as a block."""
_LONGEST = 1 << 20
"""An event that is not complete after this much text is malformed."""
_HEAD = 64 << 20
"""The list of events begins within this much text, and no more follows it."""
_MOST_MALFORMED = 1_000_000
"""With more events that cannot be read it is no trace, and what follows is not looked at."""
_MOST_SKIPPED = 16 << 10
"""Bytes that no event was found in; with more of them many are missing."""
_BRIDGE = 16
"""Bytes that may be the beginning of what lies between two events."""
_LIST = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_GAP = re.compile(rb"[\s,]*")
_TOLERANT = json.JSONDecoder(parse_float=str, strict=False)
"""Also accepts what traces hold although it is not JSON: NaN, control characters. Decimals stay text, unrounded."""
_RAW = msgspec.Raw()


class Event(msgspec.Struct, gc=False):
    """The fields of all events. Times stay text, since float64 would lose ns; args too, since few are needed."""

    ph: str = ""
    cat: str | None = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = _RAW
    dur: msgspec.Raw = _RAW
    args: msgspec.Raw = _RAW


_EVENT = msgspec.json.Decoder(Event)
_EVENTS = msgspec.json.Decoder(list[Event])


class Document:
    """A trace in a file.

    Once `blocks` is exhausted, `metadata` holds all but its events, `problems` what could not be read, a line each, and
    `cut` whether the file ends before its events do, or has no readable events for long.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.problems: list[str] = []
        self.cut = False
        self._malformed = self._skipped = 0

    def blocks(self) -> Iterator[list[Event]]:
        """The events, in the order of the file. Raises ValueError where it is no trace."""
        if not self.path.is_file():
            why = "is no regular file" if self.path.exists() else "no such file"
            raise ValueError(f"{self.path}: {why}; a Kineto trace was expected")
        chunks = self._chunks()
        text, ended = self._head(chunks), False
        for chunk in itertools.chain([b""], chunks, [None]):
            text += chunk or b""
            used = 1
            while used and not ended:
                events, used, ended = _decode_block(text) or self._decode_singly(text, last=chunk is None)
                text = text[used:]
                if events:
                    yield events
            if ended or self._malformed > _MOST_MALFORMED:
                break
        while ended and len(text) < _HEAD and (chunk := next(chunks, None)):
            text += chunk
        self.cut = not ended or self._skipped > _MOST_SKIPPED
        self._tail(text if ended else None)
        if self._malformed:
            more = f" or more, in {self._skipped} bytes" if self._skipped > _MOST_SKIPPED else ""
            self.problems.append(f"events that could not be read and are left out: {self._malformed}{more}")

    def _chunks(self) -> Iterator[bytes]:
        """The file's text, decompressed, in blocks."""
        held: list[bytes] = []
        try:
            with self.path.open("rb") as file:
                zipped = file.peek(2)[:2] == b"\x1f\x8b"
                stream = gzip.GzipFile(fileobj=file) if zipped else file
                while piece := stream.read1(_PIECE):
                    held.append(piece)
                    if sum(map(len, held)) >= _BLOCK:
                        yield b"".join(held)
                        held = []
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.problems.append("the file ends early or is damaged: only what comes before could be read")
        except OSError as error:  # the file may be whole: another user's, or on a disk that fails
            self.problems.append(f"the file cannot be read to its end: {error.strerror}")
        yield b"".join(held)

    def _head(self, chunks: Iterator[bytes]) -> bytes:
        """Read up to the list of events, and return the text after its bracket."""
        text = b""
        for chunk in chunks:
            text += chunk
            if text[:_PIECE].lstrip()[:1] != b"{" or len(text) > _HEAD:
                break
            for found in _LIST.finditer(text):
                head = _object(text[: found.end()] + b"]}")
                if head is not None:
                    self.metadata = {key: value for key, value in head.items() if key != "traceEvents"}
                    return text[found.end() :]
        is_object = text[:_PIECE].lstrip()[:1] == b"{"
        reason = "it has no list traceEvents" if is_object else "it is no JSON object" if text else "it is empty"
        reason = "; ".join([reason, *self.problems])
        raise ValueError(
            f"{self.path}: not a Kineto trace: {reason}; a JSON object with a list traceEvents was expected"
        )

    def _decode_singly(self, text: bytes, last: bool) -> tuple[list[Event], int, bool]:
        """Some of the first events, the length of their text, and whether the list ends after them."""
        window = text[:_LONGEST]
        characters = window.decode("latin-1")  # one a byte, and JSON's own characters are ASCII
        events: list[Event] = []
        at = 0
        while at < _STEP:
            start = _begin(window, at)
            if characters[start : start + 1] == "]":
                return events, start + 1, True
            try:
                _, end = _TOLERANT.raw_decode(characters, start)
            except (ValueError, RecursionError):
                break
            events += self._event(text[start:end])
            at = end
        if not at and (last or len(text) >= _LONGEST):
            if after := _BETWEEN.search(text):
                self._malformed += 1
                at = after.end() - 1
            elif not last:  # what is malformed is not held till its end
                at = len(text) - _BRIDGE
            self._skipped += at
        return events, at, False

    def _event(self, text: bytes) -> list[Event]:
        if not text.startswith(b"{"):
            self._malformed += 1
            return []
        try:
            return [_EVENT.decode(text)]
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass
        try:
            return [_EVENT.decode(msgspec.json.encode(_TOLERANT.decode(text.decode(errors="replace"))))]
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self._malformed += 1
            return []

    def _tail(self, text: bytes | None) -> None:
        """Read what follows the list of events."""
        rest = None if text is None else _object(b"{" + text.lstrip(b", \t\r\n"))
        if rest is None and not self.problems:  # else the file's end says it
            where = "within" if text is None else "after"
            self.problems.append(f"the trace is cut off {where} its events: only what comes before could be read")
        self.metadata |= rest or {}


def _decode_block(text: bytes) -> tuple[list[Event], int, bool] | None:
    """The events of the longest valid cut, the length of their text, and that the list goes on; None without one."""
    size, start = len(text), _begin(text, 0)
    while size >= _STEP:
        cuts = list(_BETWEEN.finditer(text, max(0, size - _STEP), size))
        if cuts:
            try:
                array = b"".join((b"[", memoryview(text)[start : cuts[-1].start() + 1], b"]"))
                return _EVENTS.decode(array), cuts[-1].end() - 1, False
            except (msgspec.MsgspecError, ValueError, RecursionError):
                pass
        size //= 2
    return None


def _begin(text: bytes, at: int) -> int:
    """Where the next event begins, after spaces and commas."""
    gap = _GAP.match(text, at)
    return gap.end() if gap else at


def _object(text: bytes) -> dict[str, Any] | None:
    """The JSON object in this text; None where it is none."""
    try:
        value = _TOLERANT.decode(text.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
