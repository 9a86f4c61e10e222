"""`nightsweep diagnose PATH...`: why a GPU is idle or slow, by cause, with the share of the step that each fix could
gain. Of results/SWEEP: of each of its points."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from nightsweep.analysis.diagnosis import over_ranks, screen, verdict
from nightsweep.analysis.diagnosis.evidence import sources
from nightsweep.analysis.diagnosis.verdict import Diagnosis
from nightsweep.analysis.ingest.derived import Derived
from nightsweep.analysis.tables import parquet
from nightsweep.analysis.tables.parquet import StrPath
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.record.json_files import read_json
from nightsweep.jobs.record.raw_files import unpacked
from nightsweep.jobs.record.record import Record, ending
from nightsweep.jobs.sweep import rounds


@parquet.faults_as_input_errors()
def diagnose(path: StrPath, *others: StrPath, gpu_log: StrPath | None = None) -> Diagnosis:
    """Say why the GPUs of a run are idle or slow.

    Args:
        path: a trace (an nsys export or report, or Kineto's JSON), a folder of `nightsweep ingest`, or a point's
            folder.
        others: traces of the other ranks of the run.
        gpu_log: log of the GPUs' counters that was sampled beside bare traces.

    Returns:
        `step_ms` is the mean time of a traced step and `parts` what it consists of, ms. `healthy` is None where it is
        not known. `causes` come with what gives most at least first: `share` is the part of the step, 0 to 1, that the
        remedy could save, between `low` and `high`. `table()` has them as a table.

    Raises:
        InputError: in one line, where this cannot be read.

    Traces of two ranks of a small DDP job:

        >>> import nightsweep
        >>> traces = "tests/data/kineto-h200-ddp-r{}.json.gz"
        >>> found = nightsweep.diagnose(traces.format(0), traces.format(1))
        >>> round(found.step_ms, 2), round(sum(found.parts.values()), 2)
        (35.32, 35.32)
        >>> found.table().filter(share=0)["kind"].to_list()
        ['missing_trace', 'missing_counters']
    """
    log = None if gpu_log is None else Path(gpu_log)
    return verdict.judge(sources.gather([Path(path), *map(Path, others)], log))


def print_diagnosis(paths: Sequence[Path], gpu_log: Path | None, as_json: bool, ranks: Sequence[int] | None) -> int:
    """Print the diagnosis of a run, and what its step would be on other numbers of `ranks`, or the diagnosis of each
    point of results/SWEEP; the exit status: 1 where no step could be timed. Raises InputError."""
    if len(paths) == 1 and gpu_log is None and ranks is None and (paths[0] / "sweep.json").is_file():
        return print_sweep(paths[0], as_json)
    found = diagnose(*paths, gpu_log=gpu_log)
    document, text = found.as_json(), screen.screen(found)
    if ranks:
        try:
            over = over_ranks.predict(found.evidence, ranks)
        except ValueError as error:
            raise InputError(f"--ranks: {error}") from error
        document, text = document | {"over_ranks": over.as_json()}, f"{text}\n{over.screen()}"
    print(json.dumps(document, indent=2) if as_json else text, end="\n" if as_json else "")
    return 0 if found.step_ms is not None else 1


def print_sweep(results: Path, as_json: bool) -> int:
    """Print the diagnosis of each point that is ok, and how the others ended; the exit status: 2 where none is ok.
    JSON: an object from the id of each point that is ok to its diagnosis. `results`: results/SWEEP."""
    derived = Derived(results / "derived")
    documents = {}
    points = rounds.all_ids(results, rounds.ids(results / "sweep.json"))
    if not points:
        raise InputError(f"{results / 'sweep.json'}: lists no point; expected those of a sweep that was started")
    for point in points:
        folder = results / "points" / point
        record = read_json(folder / "record.json", Record)
        if record is None or record.status != "ok":
            print(f"{point} {ending(record)}", file=sys.stderr if as_json else sys.stdout)
            continue
        with derived.folder_of(point) as tables:
            try:
                found = diagnose(folder) if tables is None else judge_point(folder, tables)
            except InputError as error:
                print(f"nightsweep diagnose: {error}", file=sys.stderr)
                continue
        documents[point] = found.as_json()
        if not as_json:
            print(f"{point}\n{screen.screen(found)}")
    if as_json:
        print(json.dumps(documents, indent=2))
    return 0 if documents else 2


@parquet.faults_as_input_errors()
def judge_point(folder: Path, tables: Path) -> Diagnosis:
    """The diagnosis of a point whose tables are made already: its trace is not read again."""
    with unpacked(folder) as point:
        return verdict.judge(sources.from_point(point, tables))
