"""Several sets of points as one folder, to draw figures and a report of all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl
from msgspec import structs

from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tables import parquet
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.record.json_files import read_json, write_json
from nightsweep.jobs.record.record import Record


@contextmanager
def as_one(folders: Sequence[Path]) -> Iterator[Path]:
    """A folder with tables/ and points/: the only one, or a temporary one with all tables and records, whose names are
    those of `dataset.load_sets`. Raises FormatError, and InputError where they are of different GPUs."""
    if len(folders) == 1:
        yield folders[0]
        return
    own = [folder / "tables" for folder in folders]
    tables = dataset.load_sets(own)
    kinds = tables["points"].filter(pl.col("status") == "ok")["accelerator"].drop_nulls().unique().sort().to_list()
    if len(kinds) > 1:
        raise InputError(
            f"points of {' and '.join(kinds)}; expected sets of one kind of GPU, whose times may be compared"
        )
    with tempfile.TemporaryDirectory(prefix="nightsweep-sets-") as name:
        out = Path(name)
        for part in ("tables", "points"):
            (out / part).mkdir()
        for table in tables.names():
            parquet.write(tables[table], out / f"tables/{table}.parquet")
        for folder in own:
            of = dataset.name_of(folder)
            for file in sorted(folder.parent.glob("points/*/record.json")):
                if (record := read_json(file, Record)) and record.point_id:
                    target = out / "points" / f"{of}.{file.parent.name}"
                    target.mkdir()
                    write_json(target / file.name, _named(record, of))
        yield out


def _named(record: Record, of: str) -> Record:
    hosts = [structs.replace(host, hostname=f"{of}/{host.hostname}") for host in record.hosts]
    return structs.replace(record, point_id=f"{of}/{record.point_id}", hosts=hosts)
