"""A few seconds of `make fuzz`, among them seeds that once broke something."""

import pytest

from tests.fuzz import databases
from tests.fuzz.__main__ import try_traces


@pytest.mark.slow
@pytest.mark.parametrize("first", [34, 81, 451, 1128])
def test_traces_are_read_or_refused_in_one_line(first, capsys):
    assert try_traces(first, 3).total() == 3 and capsys.readouterr().out == ""


@pytest.mark.parametrize("first", [0, 230])
def test_databases_are_read_as_sqlite3_reads_them(first):
    assert [line for seed in range(first, first + 20) if (line := databases.attempt(seed))] == []
