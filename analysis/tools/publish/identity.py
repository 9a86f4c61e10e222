"""The names of who measured and where, and the search for them in what is to be published.

What is published is chosen by a list (`analysis/tools/publish/allowed.py`); these names serve pseudonyms, and a last
look at the files in case that choice went wrong. Words of Nightsweep's own source are not sought: a user called `step`
is not given away by them.
"""

from __future__ import annotations

import getpass
import gzip
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

import polars as pl

from nightsweep.analysis.tools.publish.anonymizer import is_plain, short_name
from nightsweep.jobs.host.facts import ROOT
from nightsweep.jobs.record.json_files import read_json
from nightsweep.jobs.record.record import Record

DRAWN = (".png", ".pdf")
"""Files drawn from what is published; their texts are those of tables and records."""


@dataclass(frozen=True)
class Identity:
    """Who measured a sweep, and where."""

    hosts: tuple[str, ...]
    uuids: tuple[str, ...]
    others: dict[str, str]
    """Kind by name: users and folders."""

    @staticmethod
    def of_sweep(sweep: Path) -> Identity:
        """The names in a sweep's records and tables, and of this machine."""
        records = [record for path in sorted(sweep.glob("points/*/record.json")) if (record := read_json(path, Record))]
        nodes = [host for record in records for host in record.hosts]
        hosts = {host.hostname: None for host in nodes}
        uuids = {gpu.uuid: None for host in nodes for gpu in host.gpus}
        for path in sorted((sweep / "tables").glob("*.parquet")):
            hosts |= dict.fromkeys(_values(path, "hosts") + _values(path, "host"))
            uuids |= dict.fromkeys(_values(path, "uuid"))
        with suppress(OSError):
            hosts[socket.gethostname()] = None
        return Identity(tuple(filter(None, hosts)), tuple(filter(None, uuids)), _others(sweep))

    def names(self) -> dict[str, str]:
        """Kind by name of all that must not be found."""
        names = {name: "host" for host in self.hosts for name in (host, short_name(host)) if not is_plain(name)}
        names |= {uuid.removeprefix("GPU-"): "uuid" for uuid in self.uuids}
        return names | self.others

    def search(self, folder: Path) -> list[tuple[str, str]]:
        """(file, kind) of each name that is left in a folder, also in the names of its files."""
        names = {name.encode(): kind for name, kind in self.names().items()}
        sought = re.compile(b"|".join(map(_whole_word, sorted(names, key=len, reverse=True))) or b"(?!)")
        found: set[tuple[str, str]] = set()
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            file = str(path.relative_to(folder))
            found |= {(file, names[match[0]]) for text in _texts(path) for match in sought.finditer(text)}
            found |= {(file, names[match[0]]) for match in sought.finditer(file.encode())}
        return sorted(found)


def _others(sweep: Path) -> dict[str, str]:
    """Kind by name of the user, the home folder, the sweep's folder and the checkout, as far as they are known here."""
    found: dict[str, str] = {}
    tell: list[tuple[str, Callable[[], object]]] = [
        ("user", getpass.getuser), ("user", sweep.owner), ("home", Path.home), ("folder", sweep.resolve),
        ("folder", lambda: ROOT),
    ]  # fmt: skip
    for kind, ask in tell:
        with suppress(KeyError, RuntimeError, OSError):  # a container may know no name of its user
            name = str(ask())
            found |= {} if is_plain(name.strip("/")) and "/" not in name.strip("/") else {name: kind}
    return found


def _values(path: Path, column: str) -> list[str]:
    """The distinct texts of a table's column; none where there is no such column."""
    if column not in pl.read_parquet_schema(path):
        return []
    return pl.read_parquet(path, columns=[column])[column].explode().drop_nulls().unique(maintain_order=True).to_list()


def _texts(path: Path) -> Iterator[bytes | mmap]:
    """The texts of a published file, as its readers see them; of a database its bytes."""
    if path.suffix == ".parquet":
        for column in pl.read_parquet(path).get_columns():
            if column.dtype in (pl.String, pl.List(pl.String)):
                yield "\n".join(column.explode().drop_nulls().unique().to_list()).encode()
    elif path.suffix == ".gz":
        yield gzip.decompress(path.read_bytes())
    elif path.suffix not in DRAWN and path.stat().st_size:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            yield content


def _whole_word(text: bytes) -> bytes:
    """A pattern of this text where it is not part of a longer word or number. `_` and `-` end a word."""
    left = rb"(?<![A-Za-z0-9])" if text[:1].isalnum() else b""
    return left + re.escape(text) + (rb"(?![A-Za-z0-9])" if text[-1:].isalnum() else b"")
