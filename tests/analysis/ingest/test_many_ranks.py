"""Points of many ranks: a real trace of two, copied (tests/bench/many_ranks.py), read by several processes."""

import dataclasses

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from nightsweep.analysis.diagnosis.causes.communication import straggler
from nightsweep.analysis.diagnosis.evidence import rank_choice, sources
from nightsweep.analysis.diagnosis.point_diagnosis import diagnose_point
from nightsweep.analysis.ingest import point_tables, trace_tables
from nightsweep.analysis.tables import trace_files
from nightsweep.analysis.tables.traces import TRACE_TABLES
from tests.bench.many_ranks import CLOCK_NS, make_point

RANKS, SLOW = 24, 21


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A point of 24 ranks, and the folder of its tables, which two processes made."""
    folder = tmp_path_factory.mktemp("many")
    make_point(folder / "point", RANKS, SLOW)
    point_tables.write(point_tables.ingest(folder / "point", folder / "tables", 2), folder / "tables")
    return folder / "point", folder / "tables"


def trace_table(folder, name):
    return pl.read_parquet(folder / f"{name}.parquet")


def test_several_processes_give_what_one_gives(tmp_path):
    make_point(tmp_path / "point", 6, 3)
    traces = [tmp_path / f"point/traced/trace-r{rank}.sqlite" for rank in range(6)]
    for processes in (1, 2):
        trace_tables.write_all(traces, tmp_path / str(processes), processes)
    assert len(TRACE_TABLES) == len(list((tmp_path / "1").glob("*.parquet")))
    for name in TRACE_TABLES:
        one, two = (trace_table(tmp_path / processes, name) for processes in "12")
        # Exact, but for the last digit of divisions: it differs with the number of Polars' threads.
        assert_frame_equal(one, two, rel_tol=1e-14, abs_tol=0.0)
        assert one.height or name in ("graphs", "operators", "allocations", "counters")


def test_a_diagnosis_of_a_few_of_many_ranks_names_the_slow_one(many):
    point, tables = many
    found = diagnose_point(point, tables).as_json()
    (straggler,) = (cause for cause in found["causes"] if cause["kind"] == "straggler")
    assert straggler["rank"] == SLOW and straggler["share"] > 0.05
    assert len(found["ranks"]) == rank_choice.MOST and {0, SLOW} <= set(found["ranks"])
    assert "missing_trace" not in {cause["kind"] for cause in found["causes"]}


def test_clocks_of_all_ranks_are_one(many):
    clocks = trace_table(many[1] / "trace", "file_clocks").sort("rank")
    off = clocks["offset_ns"].to_numpy() - clocks["rank"].to_numpy() * CLOCK_NS
    fast = clocks["rank"].to_numpy() != SLOW
    assert clocks["rank"].to_list() == list(range(RANKS)) and not off[fast].any() and abs(off[SLOW]) < 100_000


def test_no_more_than_one_ranks_events_are_held_while_tables_are_joined(tmp_path, monkeypatch):
    """The rows that are handed to the writer at a time are one rank's, however many ranks there are."""
    make_point(tmp_path / "point", 8, 3)
    rows, real = [], trace_files.Writer.add

    def add(self, frames):
        rows.append((frames["kernels"].height, frames["kernels"]["rank"].n_unique()) if "kernels" in frames else (0, 1))
        real(self, frames)

    monkeypatch.setattr(trace_files.Writer, "add", add)
    traces = [tmp_path / f"point/traced/trace-r{rank}.sqlite" for rank in range(8)]
    trace_tables.write_all(traces, tmp_path / "out", 1)
    kernels = trace_table(tmp_path / "out", "kernels")
    assert max(ranks for _, ranks in rows) == 1 and max(held for held, _ in rows) < kernels.height / 7
    assert len(rows) == 8 + 8 + 1  # read, joined, and the tables of all


def test_a_rank_without_a_trace_is_named_by_its_steps(many):
    point, tables = many
    e = sources.from_point(point, tables)
    slower = pl.when(pl.col("rank") == 30).then(60.0).otherwise(50.0)
    first = e.traced_steps.filter(pl.col("rank") == 0)
    steps = pl.concat([first.with_columns(rank=pl.lit(rank, pl.Int64)) for rank in range(32)])
    found = next(straggler(dataclasses.replace(e, steps=steps.with_columns(step_ms=slower))))
    assert found.rank == 30 and found.share == pytest.approx(1 / 6) and "trace rank 30" in found.advice
    level = steps.with_columns(step_ms=pl.lit(50.0))
    assert next(straggler(dataclasses.replace(e, steps=level))).rank == SLOW


@pytest.mark.parametrize("count", [3, 16, 17, 512])
def test_the_ranks_that_are_looked_at_have_the_suspects_among_them(count):
    ranks, suspect, busy = list(range(count)), count - 1, count - 2
    waits = pl.DataFrame({"rank": [1, suspect], "step": [None, None], "late_ns": [5, 9]})
    parts = pl.DataFrame({"rank": [0, busy], "part": ["compute"] * 2, "duration_ns": [5, 9]})
    chosen = rank_choice.choose_ranks(ranks, waits, parts)
    assert len(chosen) == min(count, rank_choice.MOST) and {0, suspect, busy} <= set(chosen)
    assert chosen == sorted(set(chosen))
