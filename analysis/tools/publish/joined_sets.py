"""Several sets of points as one folder, to draw figures and a report of all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import structs

from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tables import parquet
from nightsweep.jobs.record.json_files import read_json, write_json
from nightsweep.jobs.record.record import Record


@contextmanager
def as_one(folders: Sequence[Path]) -> Iterator[Path]:
    """A folder with tables/ and points/: the only one, or a temporary one with all tables and records. Raises
    FormatError and InputError."""
    if len(folders) == 1:
        yield folders[0]
        return
    tables = dataset.load_sets([folder / "tables" for folder in folders])
    with tempfile.TemporaryDirectory(prefix="nightsweep-sets-") as name:
        out = Path(name)
        for part in ("tables", "points"):
            (out / part).mkdir()
        for table in tables.names():
            parquet.write(tables[table], out / f"tables/{table}.parquet")
        for folder in folders:
            of = folder.resolve().name
            for file in sorted(folder.glob("points/*/record.json")):
                if (record := read_json(file, Record)) and record.point_id:
                    named = structs.replace(record, point_id=f"{of}/{record.point_id}")
                    (out / "points" / f"{of}.{file.parent.name}").mkdir()
                    write_json(out / "points" / f"{of}.{file.parent.name}" / file.name, named)
        yield out
