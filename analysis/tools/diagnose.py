"""`nightsweep diagnose PATH...`: why a GPU is idle or slow, by cause, with the share of the step that each fix could
gain. Of results/SWEEP: of each of its points."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.diagnosis import over_ranks, screen, verdict
from analysis.diagnosis.evidence import sources
from analysis.diagnosis.verdict import Diagnosis
from analysis.ingest.derived import Derived
from jobs.record.json_files import FormatError, read_json
from jobs.record.raw_files import unpacked
from jobs.record.record import Record, ending
from jobs.sweep import rounds

EXIT_WRONG = 2


def diagnose(paths: Sequence[Path], log_of_gpus: Path | None, as_json: bool, ranks: Sequence[int] | None) -> int:
    """Print the diagnosis of a run, and what its step would be on other numbers of `ranks`, or the diagnosis of each
    point of results/SWEEP; the exit status."""
    if len(paths) == 1 and log_of_gpus is None and ranks is None and (paths[0] / "sweep.json").is_file():
        return diagnose_sweep(paths[0], as_json)
    found = judge_run(paths, log_of_gpus)
    if found is None:
        return EXIT_WRONG
    document, text = found.as_json(), screen.screen(found)
    if ranks:
        try:
            over = over_ranks.predict(found.evidence, ranks)
        except ValueError as error:
            print(f"nightsweep diagnose: --ranks: {error}", file=sys.stderr)
            return EXIT_WRONG
        document, text = document | {"over_ranks": over.as_json()}, f"{text}\n{over.screen()}"
    print(json.dumps(document, indent=2) if as_json else text, end="\n" if as_json else "")
    return 0


def judge_run(paths: Sequence[Path], log_of_gpus: Path | None = None, tables: Path | None = None) -> Diagnosis | None:
    """The diagnosis of a run; None, with a line on stderr, where nothing can be diagnosed. `tables`: a point's, where
    they are made already; its trace is not read again then."""
    try:
        if tables is None:
            return verdict.judge(sources.gather(paths, log_of_gpus))
        with unpacked(paths[0]) as point:
            return verdict.judge(sources.from_point(point, tables))
    except (sources.SourceError, FormatError) as error:
        print(f"nightsweep diagnose: {error}", file=sys.stderr)
        return None


def diagnose_sweep(results: Path, as_json: bool) -> int:
    """Print the diagnosis of each point that is ok, and how the others ended; the exit status: 2 where none is ok.
    JSON: an object from the id of each point that is ok to its diagnosis. `results`: results/SWEEP."""
    try:
        derived = Derived(results / "derived")
        points = rounds.all_ids(results, rounds.ids(results / "sweep.json"))
    except FormatError as error:
        print(f"nightsweep diagnose: {error}", file=sys.stderr)
        return EXIT_WRONG
    documents = {}
    for point in points:
        folder = results / "points" / point
        record = read_json(folder / "record.json", Record)
        if record is None or record.status != "ok":
            print(f"{point} {ending(record)}", file=sys.stderr if as_json else sys.stdout)
            continue
        try:
            with derived.folder_of(point) as tables:
                found = judge_run([folder], tables=tables)
        except FormatError as error:
            print(f"nightsweep diagnose: {error}", file=sys.stderr)
            return EXIT_WRONG
        if found is not None:
            documents[point] = found.as_json()
            if not as_json:
                print(f"{point}\n{screen.screen(found)}")
    if as_json:
        print(json.dumps(documents, indent=2))
    return 0 if documents else EXIT_WRONG
