"""Several sets of points as one folder, to draw figures and a report of all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tables import parquet


@contextmanager
def as_one(folders: Sequence[Path]) -> Iterator[Path]:
    """A folder with tables/ and points/: the only one, or a temporary one with all tables and links to the records.
    Raises FormatError and InputError."""
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
            for record in sorted(folder.glob("points/*/record.json")):
                link = out / "points" / f"{folder.resolve().name}.{record.parent.name}" / record.name
                link.parent.mkdir()
                link.symlink_to(record.resolve())
        yield out
