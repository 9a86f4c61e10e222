"""Tables on disk. Of one that is missing or damaged, the error names the file."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from nightsweep.jobs.record.failures import is_disk_full, os_error_line
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.record.json_files import FormatError
from nightsweep.jobs.record.whole_file import write_bytes

StrPath = str | os.PathLike[str]
FAULTS = (FormatError, OSError, pl.exceptions.PolarsError)
"""What files that are missing, damaged, or have no room lead to: a command ends with one line then."""


@contextmanager
def faults_as_input_errors() -> Iterator[None]:
    """Raise what missing or damaged files lead to as InputError, in one line. A full disk is no fault of theirs, and
    neither is a reader of what is printed that has gone."""
    try:
        yield
    except (InputError, BrokenPipeError):
        raise
    except FAULTS as error:
        if is_disk_full(error):
            raise
        said = os_error_line(error) if isinstance(error, OSError) else str(error)
        raise InputError(" ".join(said.split())) from error


def write(frame: pl.DataFrame, path: Path, **options: Any) -> None:
    """Write a table at once or not at all. Raises OSError: Polars itself does not say that a disk is full. `options`:
    of Polars' write_parquet."""
    packed = io.BytesIO()
    frame.write_parquet(packed, **options)
    write_bytes(path, packed.getvalue())


def require(path: Path, expected: str) -> None:
    """Raise FormatError unless the file is a whole table. `expected`: the end of its text."""
    if not path.exists():
        raise FormatError(f"{path}: no such file; {expected}")
    try:
        if path.is_file():
            pl.read_parquet_schema(path)
            return
    except PermissionError:
        raise FormatError(f"{path}: must not be read; {expected}") from None
    except (OSError, pl.exceptions.PolarsError):
        pass
    raise FormatError(f"{path}: cut, or no table; {expected}")


def scan_whole(folder: Path, names: Iterable[str], writer: str) -> dict[str, pl.LazyFrame]:
    """The tables of these names that the folder has, to be read when they are asked for. Raises FormatError where one
    is damaged. `writer`: the command that writes such tables."""
    files = {name: folder / f"{name}.parquet" for name in names}
    there = {name: file for name, file in files.items() if file.exists()}
    for file in there.values():
        require(file, f"expected Parquet, as `{writer}` writes it")
    return {name: pl.scan_parquet(file) for name, file in there.items()}
