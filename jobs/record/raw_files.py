"""The raw files of a measured point as one file, once its tables are made: file systems of clusters have quotas of
files, and a point of two ranks writes thirty.

    with unpacked(point) as folder:  # as the launch left it
        results_of(folder)

Traces stay beside the archive, for the tools that open them.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from nightsweep.jobs.host.cache import try_lock
from nightsweep.jobs.record.failures import is_disk_full
from nightsweep.jobs.record.json_files import FormatError, parse_json, read_json, write_json
from nightsweep.jobs.record.record import Record
from nightsweep.jobs.record.whole_file import whole_file

ARCHIVE = "raw.zip"
MEASURED = ".measured.json"
"""What a launcher found out of its point, before record.json and, of an ok one, beside it; the archive takes it over. A
driver that is killed just as a point ends takes the record for half-written and deletes it, and the point that leads a
block has none until all of it has ended; this one puts it back, so that no point is run again that has its result."""
RUNS = ("timed", "traced", "cost-*", "search*")
TRACES = "trace-r*"
PASSING = (
    *("rank*.heartbeat", "rank*.pid.json", "rank*.exit.json", "rank*.phases.jsonl"),
    *("rank*.claim", "rank*.second", "facts-*.json", "live-*.json", "samplers-*.json"),
)
"""Files of a run that only whoever watches it needs, or of which the record says the same: the archive has none."""


def runs_of(point: Path) -> list[Path]:
    """The folders of all runs of a point, those of its tenants too."""
    return [folder for pattern in (*RUNS, "tenant-*") for folder in sorted(point.glob(pattern))]


def clear(point: Path) -> None:
    """Take away the runs and the records of earlier attempts: the next one may skip some, or be stopped, and they would
    pass for its own."""
    for old in runs_of(point):
        shutil.rmtree(old, ignore_errors=True)
    for file in (MEASURED, ARCHIVE, "record.json"):
        (point / file).unlink(missing_ok=True)


def measured_record(point: Path) -> Record | None:
    """That one; None where the point has no result, or has failed and been published."""
    return read_json(point / MEASURED, Record) or _archived_record(point / ARCHIVE)


def _archived_record(archive: Path) -> Record | None:
    try:
        with zipfile.ZipFile(archive) as packed:
            return parse_json(packed.read(MEASURED).decode(errors="replace"), Record)
    except (OSError, KeyError, zipfile.BadZipFile, zlib.error, EOFError):
        return None


def publish(point: Path, record: Record) -> None:
    """Write record.json. A point that failed is run again where somebody deletes that."""
    write_json(point / "record.json", record)
    if record.status != "ok":
        (point / MEASURED).unlink(missing_ok=True)


def pack(point: Path) -> None:
    """Put a point's raw files into its archive, where it is measured and none of its runs has failed. While it is being
    measured, nothing happens."""
    if not (point / MEASURED).exists():
        return
    with (point / "attempts.jsonl").open("a") as lock:
        if not try_lock(lock.fileno()):
            return
        record = read_json(point / MEASURED, Record)
        if record is None or "failed" in (record.runs.timed.status, record.runs.traced.status):
            return
        files = _files(point)
        if not (point / ARCHIVE).exists():
            _write(point, files)
        for path in files:
            path.unlink()
        for folder in {path.parent for path in files} - {point}:
            with contextlib.suppress(OSError):  # traces are still there
                folder.rmdir()


def _files(point: Path) -> list[Path]:
    """All that goes into the archive or is gone then; the copy of the record last, so that no kill loses it."""
    runs = (folder for pattern in RUNS for folder in sorted(point.glob(pattern)))
    found = (path for folder in runs for path in sorted(folder.iterdir()) if path.is_file())
    return [*(path for path in found if not fnmatch.fnmatch(path.name, TRACES)), point / MEASURED]


def _write(point: Path, files: list[Path]) -> None:
    with whole_file(point / ARCHIVE) as scratch, scratch.open("wb") as sink:
        with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as packed:
            for path in files:
                if not any(fnmatch.fnmatch(path.name, pattern) for pattern in PASSING):
                    packed.write(path, path.relative_to(point))
        sink.flush()
        os.fsync(sink.fileno())  # before what it holds is removed


def require_own(point: Path, packed: Record | None) -> None:
    """Raise FormatError where the archive came with another point's record than the one that is beside it."""
    beside = read_json(point / "record.json", Record)
    if packed and beside and packed.point_id != beside.point_id:
        whose = f"the raw files of point {packed.point_id}, not of {beside.point_id}"
        raise FormatError(f"{point / ARCHIVE}: holds {whose}, as record.json says")


@contextlib.contextmanager
def unpacked(point: Path) -> Iterator[Path]:
    """The point's folder as a launch leaves it; a temporary one of the same name where the raw files are packed. Raises
    FormatError where the archive is broken, OSError where a disk is full."""
    if not (point / ARCHIVE).exists():
        yield point
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, point.resolve().name)
        try:
            with zipfile.ZipFile(point / ARCHIVE) as packed:
                packed.extractall(folder)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            if is_disk_full(error):
                raise
            why = error.strerror if isinstance(error, OSError) else error
            raise FormatError(f"{point / ARCHIVE}: holds no raw files: {why}") from error
        require_own(point, read_json(folder / MEASURED, Record))
        for path in (path for path in point.resolve().rglob("*") if path.is_file() and path.name != ARCHIVE):
            link = folder / path.relative_to(point.resolve())
            if not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path)
        yield folder
