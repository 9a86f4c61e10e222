"""Files that are written at once or not at all: a full disk or a kill leaves what was there before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nightsweep.jobs.host import cache


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to beside `path`, whose place it takes at a good end; at a bad one it is gone."""
    scratch = cache.scratch(path)
    try:
        yield scratch
        scratch.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        scratch.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    with whole_file(path) as scratch:
        scratch.write_bytes(content)
