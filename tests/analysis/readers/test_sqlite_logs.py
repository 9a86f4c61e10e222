"""An SQLite export with a log of changes beside it: with all that SQLite finds in both, or refused."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from nightsweep.analysis.readers.nsys import reader as nsys
from tests.analysis.readers.test_readers import GLOBAL, make_nsys

KERNEL = f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (600, 666, 0, 7, 9, {GLOBAL}, 0, NULL)"


def copy_with_log(path, log, target):
    """What a tracer that was killed leaves."""
    target.mkdir()
    for name in (path.name, f"{path.name}{log}"):
        shutil.copy(path.with_name(name), target)
    return target / path.name


@pytest.fixture
def logged(tmp_path):
    """An export of three kernels, and a fourth in its write-ahead log."""
    path = make_nsys(tmp_path / "trace-r0.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(KERNEL)
        db.commit()
        yield copy_with_log(path, "-wal", tmp_path / "killed")


def test_a_write_ahead_log_without_its_index(logged):
    assert nsys.read(logged).events["kernels"].height == 4


def test_a_write_ahead_log_beside_the_file_that_a_link_names(logged, tmp_path):
    link = tmp_path / "trace-r1.sqlite"
    link.symlink_to(logged)
    assert nsys.read(link).events["kernels"].height == 4


def test_a_journal_that_must_be_rolled_back_first(tmp_path):
    path = make_nsys(tmp_path / "trace-r0.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA cache_size = 1")  # so that pages are written before the end of the transaction
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, "x" * 500) for i in range(100, 300)])
        db.commit()
        db.execute("UPDATE StringIds SET value = 'half'")
        db.execute(KERNEL)
        db.execute("UPDATE StringIds SET value = 'whole'")
        left = copy_with_log(path, "-journal", tmp_path / "killed")
    with pytest.raises(ValueError, match=r"trace-r0\.sqlite: SQLite cannot apply trace-r0\.sqlite-journal: [^\n]*$"):
        nsys.read(left)
    with closing(sqlite3.connect(left)) as db:
        db.execute("SELECT 1 FROM StringIds").fetchone()
    kernels = nsys.read(left).events["kernels"]
    assert kernels["name"].to_list() == ["gemm()", "ncclDevKernel_AllReduce", "gemm()"]


def test_a_write_ahead_log_that_many_threads_read(tmp_path):
    """The first of them makes an index of the log, and lets no other in meanwhile."""
    path = make_nsys(tmp_path / "trace-r0.sqlite")
    columns = "rowid, start, end, deviceId, streamId, correlationId, globalPid, demangledName"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        rows = [(number << 18, 600 + number, 700, 0, 7, 9, GLOBAL, 0) for number in range(1, 60)]
        db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL ({columns}) VALUES ({', '.join('?' * 8)})", rows)
        db.commit()
        left = copy_with_log(path, "-wal", tmp_path / "killed")
    for _ in range(5):
        left.with_name(f"{left.name}-shm").unlink(missing_ok=True)
        found = nsys.read(left)
        assert found.problems == () and found.events["kernels"].height == 3 + 59
