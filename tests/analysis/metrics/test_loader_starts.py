"""When a thread waits for its loader: in ranges of loaders, and where one is started anew."""

import polars as pl

from nightsweep.analysis.metrics.steps import parts

NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def ranges(*rows):
    return pl.DataFrame(rows, schema=["name", "start_ns", "end_ns"], orient="row")


def calls(*starts):
    return pl.DataFrame({"start_ns": list(starts)}, schema={"start_ns": pl.Int64})


def test_a_loader_starts_anew_where_nothing_is_called_between_two_of_its_ranges():
    marks = ranges((NEXT, 0, 10), (NEXT, 100, 110), ("forward", 115, 120), (NEXT, 300, 350))
    assert parts.loader_starts(marks, calls(20, 360)).tolist() == [[110, 300]]
    assert parts.loading(marks, calls(20, 360)).tolist() == [[0, 10], [100, 350]]


def test_what_is_called_between_two_batches_is_no_start():
    marks = ranges((NEXT, 0, 10), (NEXT, 100, 110))
    assert parts.loading(marks, calls(50)).tolist() == [[0, 10], [100, 110]]
    assert parts.loader_starts(ranges(), calls()).tolist() == []
