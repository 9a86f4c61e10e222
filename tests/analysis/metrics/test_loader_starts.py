"""When a thread waits for its loader: in ranges of loaders, and where one starts its workers anew."""

import polars as pl

from nightsweep.analysis.metrics.steps import loader

WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
ALONE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
SCHEMA = {"name": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64, "thread": pl.Int64}


def events(ranges, seeds, calls):
    def frame(rows):
        return pl.DataFrame(rows, schema=SCHEMA, orient="row")

    return {
        "nvtx": frame([(*row, 1) for row in ranges]),
        "operators": frame([("aten::random_", at, at + 1, 1) for at in seeds]),
        "runtime": frame([("cudaLaunchKernel", at, at + 1, 1) for at in calls]),
    }


def test_workers_start_between_a_seed_and_the_first_batch():
    trace = events(
        [(WORKERS, 0, 10), (WORKERS, 90, 100), ("validate", 101, 120), (WORKERS, 300, 350)], [130], [50, 360]
    )
    assert loader.starts(trace, 1).tolist() == [[130, 300]]
    assert loader.waits(trace, [1]).tolist() == [[0, 10], [90, 100], [130, 350]]
    assert loader.starts(trace, 2).tolist() == []


def test_other_work_between_two_batches_is_no_start():
    for name, seeds, calls in ((WORKERS, [], []), (ALONE, [50], []), (WORKERS, [50], [70]), ("data", [50], [])):
        trace = events([(name, 0, 10), (name, 100, 110)], seeds, calls)
        assert loader.starts(trace, 1).tolist() == []
        assert loader.waits(trace, [1]).tolist() == [[0, 10], [100, 110]]
