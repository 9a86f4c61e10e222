"""One process that tries faulty traces from a seed on, and says of each what happened, a JSON line each.

python -m tests.fuzz.worker FIRST COUNT
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import sqlite3
import sys
import tempfile
import traceback
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from nightsweep.analysis.readers.nsys import reader, source
from nightsweep.analysis.tools import cli
from tests.fuzz import traces

MOST_BYTES = 4 << 30
SPARE_BYTES = 16 << 30
"""Of addresses, which a process takes more of than of memory."""


class Broken(Exception):
    """Says what a trace did that it must not."""


def run(*words: str) -> tuple[int, str, str]:
    """Exit status, output and errors of `nightsweep`."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = cli.main(list(words))
    return status, out.getvalue(), errors.getvalue()


def check_commands(path: Path, folder: Path) -> str:
    """Read and diagnose a trace; how well it could be read. Raises Broken."""
    status, _, errors = run("ingest", str(path), "--out", str(folder / "tables"))
    lines = errors.splitlines()
    if status not in (0, 1, 2) or any(not line.startswith("nightsweep ingest: ") for line in lines):
        raise Broken(f"ingest: status {status}: {errors}")
    if (status == 0) != (not lines) or (status == 2 and len(lines) != 1):
        raise Broken(f"ingest: status {status} with {len(lines)} lines: {errors}")
    judged, out, said = run("diagnose", str(path), "--json")
    if (judged == 2) != (status == 2) or (judged == 2 and len(said.splitlines()) != 1):
        raise Broken(f"diagnose: status {judged} after {status}: {said}")
    if judged != 2:
        json.loads(out)
    run("diagnose", str(path))
    return ("whole", "in part", "refused")[status]


def check_numbers(path: Path) -> None:
    """Where SQLite finds nothing wrong with a file, both ways to read it give the same. Raises AssertionError."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        try:
            if db.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                return
        except sqlite3.Error:
            return
    try:
        mine = reader.read(path)
    except Exception as error:
        mine = type(error)
    with pytest.MonkeyPatch.context() as patch:

        def refuse(path: Path) -> None:
            raise source.UnsupportedLayout("as a trial")

        patch.setattr(source, "Pages", refuse)
        try:
            other = reader.read(path)
        except Exception as error:
            other = type(error)
    if isinstance(mine, type) or isinstance(other, type):
        assert mine == other, f"{mine} by pages, {other} by SQLite"
        return
    for kind, frame in mine.events.items():
        assert_frame_equal(frame, other.events[kind], categorical_as_str=True)
    assert mine.problems == other.problems


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def attempt(seed: int) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        path = traces.make(seed, folder)
        try:
            end = check_commands(path, folder)
            if path.suffix == ".sqlite":
                check_numbers(path)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            where = "".join(traceback.format_exception(error)[-6:])
            return {"end": "broken", "what": f"{path.name}: {where}"}
    if peak() > MOST_BYTES:
        return {"end": "broken", "what": f"{path.name}: {peak() >> 20} MiB"}
    return {"end": end}


def main(first: int, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (SPARE_BYTES, SPARE_BYTES))
    for seed in range(first, first + count):
        print(json.dumps({"seed": seed, **attempt(seed)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
