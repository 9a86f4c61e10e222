"""Traces with events that cannot be true: diagnosed without them, and told so. Found by `make fuzz`."""

import json
import sqlite3
from contextlib import closing

import pytest

from nightsweep.analysis.ingest import engine
from nightsweep.analysis.tools import cli
from tests.fakes.ranks import unpack

KERNELS, CALLS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
FAULT = "events without a start or with no, a negative or an absurd duration, left out"
FREE = [f"CREATE TABLE free AS SELECT * FROM {CALLS}", f"DROP TABLE {CALLS}", f"ALTER TABLE free RENAME TO {CALLS}"]
"""Of the calls, whose columns may then be null."""
UNSOUND = {
    "no names": (["DROP TABLE StringIds"], "runtime: events without a name, called unknown"),
    "no starts": ([*FREE, f"UPDATE {CALLS} SET start = NULL WHERE rowid % 2"], f"runtime: {FAULT}"),
    "no ends": ([*FREE, f'UPDATE {CALLS} SET "end" = NULL WHERE rowid % 2'], f"runtime: {FAULT}"),
    "negative": ([f'UPDATE {KERNELS} SET start = "end", "end" = start WHERE rowid % 2'], f"kernels: {FAULT}"),
    "overflow": (
        [f'UPDATE {KERNELS} SET "end" = 9223372036854775807, start = -9223372036854775808 WHERE rowid % 2'],
        f"kernels: {FAULT}",
    ),
    "clock": (
        ["UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = 9223372036854775807"],
        "TARGET_INFO_SESSION_START_TIME: 9223372036854775807 is no time: times are those of the trace's own clock",
    ),
}


@pytest.fixture
def export(tmp_path):
    return unpack("ddp-r0", tmp_path)


def change(path, *statements):
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("what", UNSOUND)
def test_events_that_cannot_be_true_are_told(export, capsys, what):
    statements, line = UNSOUND[what]
    change(export, *statements)
    assert cli.main(["diagnose", str(export), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert line in json.dumps(found)


@pytest.mark.parametrize("name", ["ddp-r0", "zero3-r1"])
def test_copies_that_nothing_launched_and_that_begin_at_one_moment(tmp_path, capsys, name):
    """Played again, such steps take no time."""
    export, copies = unpack(name, tmp_path), "CUPTI_ACTIVITY_KIND_MEMCPY"
    first = f"UPDATE {copies} SET start = (SELECT min(start) FROM {copies}) WHERE rowid % 2 = 0"
    change(export, f"DROP TABLE {KERNELS}", f"ALTER TABLE {CALLS} DROP COLUMN correlationId", first)
    assert cli.main(["diagnose", str(export)]) == 0
    assert capsys.readouterr().err == ""


def test_names_that_are_no_text(export):
    change(export, "UPDATE StringIds SET value = CAST(x'67656dff6d' AS TEXT) WHERE rowid % 2")
    (frames,) = engine.analyse(export, export.name)
    assert "gem\ufffdm" in frames["kernels"]["name"].cast(str).to_list()
