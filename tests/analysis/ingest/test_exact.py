"""Our sums against what `nsys stats` says of the same export, to the nanosecond.

What nsys 2023.4 said of our own exports is kept beside them; where an nsys and the public traces are at hand, it is
asked anew.
"""

import gzip
import json
import shutil

import pytest

from tests.analysis.readers.test_readers import DATA, REAL
from tests.bench import oracle
from tests.fakes.ranks import analyse, unpack

NAMES = ("ddp-r0", "ddp-r1", "zero3-r0", "zero3-r1")


@pytest.mark.parametrize("name", NAMES)
def test_own_exports(name, tmp_path):
    reports = json.loads(gzip.decompress((DATA / f"h200-ranks/{name}.stats.json.gz").read_bytes()))
    assert reports.keys() == oracle.REPORTS.keys()
    found = analyse(unpack(name, tmp_path), name)
    for table, text in reports.items():
        assert len(oracle.rows(text)) >= 3
        assert oracle.differences(table, found[table], text) == [], table


def test_a_difference_is_seen(tmp_path):
    """The comparison itself: a nanosecond more, and a row less."""
    text = json.loads(gzip.decompress((DATA / "h200-ranks/ddp-r0.stats.json.gz").read_bytes()))["kernel_sum"]
    sums = analyse(unpack("ddp-r0", tmp_path), "ddp-r0")["kernel_sum"]
    off = sums.with_columns(total=sums["total"].set(sums["total"] == sums["total"][0], sums["total"][0] + 1))
    assert len(oracle.differences("kernel_sum", off, text)) == 1
    assert len(oracle.differences("kernel_sum", sums.slice(1), text)) == 1


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir() or shutil.which("nsys") is None, reason="no public traces, or no nsys here")
@pytest.mark.parametrize("path", sorted(REAL.glob("*.sqlite")), ids=lambda path: path.stem)
def test_public_exports(path, tmp_path):
    export = shutil.copy(path, tmp_path)  # nsys writes beside it
    found = analyse(path, path.name)
    for table, text in oracle.asked(export).items():
        assert oracle.differences(table, found[table], text) == [], table
