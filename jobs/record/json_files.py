"""Writes and reads the small JSON files of a launch, and its logs of JSON lines.

What is read may be of another version, or cut off where its writer was killed. Keys that are not known are ignored.
Keys that are missing, and those that hold something else than they should, have their default. A text that is no
object, or that lacks what has no default, is not read at all.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.record.whole_file import write_text

T = TypeVar("T")
LOCK = threading.RLock()
"""msgspec learns a class when it is used first, and crashes where another thread uses the class meanwhile (0.22: what
StructInfo_Convert has begun is already found, and its types are null pointers)."""


class FormatError(InputError):
    """A file is not there or does not hold what it should. The text names the file and says why, in one line."""


def write_json(path: Path, content: Any) -> None:
    """Write at once or not at all: a reader never sees half a file."""
    write_text(path, json.dumps(msgspec.to_builtins(content), indent=1) + "\n")


def json_line(content: Any) -> str:
    """One line of a log. NaN stays NaN, which msgspec's own encoder would make null."""
    return json.dumps(msgspec.to_builtins(content)) + "\n"


def convert(value: Any, kind: type[T]) -> T:
    """The value as this type. Raises ValueError where it is something else, or lacks a field that has no default."""
    with LOCK:
        return _convert(value, kind)


def _convert(value: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        if not (isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            raise
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    good = {name: value[name] for name in fields.keys() & value.keys() if fits(value[name], fields[name])}
    return msgspec.convert(good, kind)


def fits(value: Any, field: msgspec.structs.FieldInfo) -> bool:
    """Whether this field can hold the value. One without a default must, or all of its object is refused."""
    try:
        msgspec.convert(value, field.type)
    except msgspec.ValidationError:
        return field.required
    return True


def parse_json(text: str, kind: type[T]) -> T | None:
    """The object of a text; None where it is half written or something else."""
    try:
        return convert(json.loads(text), kind)
    except (ValueError, RecursionError):
        return None


def load_json(path: Path, kind: type[T]) -> T:
    """What a file holds. Raises FormatError."""
    try:
        return convert(json.loads(path.read_text(errors="replace")), kind)
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise FormatError(f"{path}: holds no {kind.__name__}: {why}") from error


def read_json(path: Path, kind: type[T]) -> T | None:
    """What a file holds; None where there is no such file, or it holds something else."""
    try:
        return load_json(path, kind)
    except FormatError:
        return None


def parse_lines(text: str, kind: type[T]) -> Iterator[T]:
    """The objects of a text of JSON lines. A job may be killed within a line, and one that was started again goes on
    behind it: what is no whole object is left out."""
    for line in text.splitlines():
        found = parse_json(line, kind)
        if found is not None:
            yield found


def count_lines(path: Path) -> int:
    """How many lines of a log hold anything; 0 where there is no such file."""
    try:
        return sum(bool(line.strip()) for line in path.read_text(errors="replace").splitlines())
    except OSError:
        return 0


def read_lines(path: Path, kind: type[T]) -> list[T]:
    """The objects of a log; none where there is no such file."""
    try:
        return list(parse_lines(path.read_text(errors="replace"), kind))
    except OSError:
        return []
