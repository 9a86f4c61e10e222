"""Takes out of a sweep's texts, records, tables and traces what `analysis/tools/publish/leaks.py` found.

    scrubber = Scrubber(collect(folder))
    scrubber.text("n2: /home/ann/x/y.py")           # 'node2: <dir1>/y.py'
    nsys_copy(source, target, scrubber)             # an export without environment, command lines and other processes

Hosts become node1, node2, ...; GPUs GPU-1, GPU-2, ...; the same in every file. An absolute path keeps its last name
(folders become <dir1>, <dir2>, ..., so that different paths stay different), or all that stands behind the checkout of
Nightsweep (<root>), the folder where it ran (<work>) or a Python library (<python>); paths of the system stay.

Names of users and hosts and values of the environment are replaced where they stand as words. Not in symbols: names of
kernels, operators and API calls stay as they are, but for paths, addresses and UUIDs, which no symbol holds. So a user
called `native` does not turn `at::native::...` into something else.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl

from analysis.tools.publish.leaks import (
    ADDRESS,
    PLACES,
    SYMBOLS,
    SYSTEM,
    UUID,
    Secrets,
    bounded,
    hosts_of,
    is_address,
    load,
)

_PATH = re.compile(r"(?<![\w.<>~-])(?<!:/)/(?:[\w.+@%~=-]+/)*[\w.+@%~=-]*[\w+@%~=-]")
_LIBRARY = re.compile(r".*/(?:site-packages|dist-packages|lib(?:64)?/python3(?:\.\d+)?)/(.+)")
_NEVER = "(?!)"
TAIL = 4000

KEPT = re.compile(
    r"StringIds|TARGET_INFO_(?:SESSION_START_TIME|GPU|GPU_METRICS|CUDA_\w+)|META_DATA_EXPORT|ANALYSIS_DETAILS|OSRT_API|"
    r"PROFILER_OVERHEAD|GPU_METRICS|COMPOSITE_EVENTS|SCHED_EVENTS|\w+_CALLCHAINS|(?:CUPTI|CUDA|CUDNN|CUBLAS|NVTX|ENUM)_\w+"
)
"""Tables of an export that keep their rows. All others stay empty: a new one may hold anything."""
_ROWS = {"META_DATA_EXPORT": "name GLOB 'EXPORT_PRODUCT_*' OR name GLOB 'EXPORT_SCHEMA_*'",
         "StringIds": "id IN symbol_ids OR id IN text_ids"}  # fmt: skip
_IDS = {"symbol_ids": {"demangledName", "shortName", "mangledName", "nameId", "symbol"},
        "text_ids": {"textId", "jsonTextId", "module"}}  # fmt: skip
KINETO_KEYS = (
    "schemaVersion", "deviceProperties", "cupti_version", "cuda_runtime_version", "cuda_driver_version", "trace_id",
    "record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules", "distributedInfo", "traceEvents",
    "displayTimeUnit", "baseTimeNanoseconds",
)  # fmt: skip
"""What is kept at the top of a Kineto trace."""
SYMBOL_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op")


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def _nodes(hosts: Iterable[str], used: int) -> dict[str, str]:
    """The pseudonym of each host; the long and the short name of one have the same."""
    hosts = list(hosts)
    short = sorted({host.partition(".")[0] for host in hosts}, key=_natural)
    # Where a host is really called node2, another one must not be published under this name.
    words = [w for w in ("node", "host", "machine") if not any(re.fullmatch(rf"{w}\d+", name) for name in short)]
    number = {name: f"{(words or ['computer'])[0]}{index}" for index, name in enumerate(short, 1 + used)}
    return {host: number[host.partition(".")[0]] for host in hosts}


def _pattern(pairs: Iterable[tuple[str, str]]) -> re.Pattern[str]:
    return re.compile("|".join(bounded(text) for _, text in pairs) or _NEVER)


class Scrubber:
    """Replaces the secrets in texts, and counts by kind what it replaced.

    `used`: how many pseudonyms of hosts, GPUs and folders (host, gpu, dir) are taken already, by other results that the
    copy joins.
    """

    def __init__(self, secrets: Secrets, used: Mapping[str, int] | None = None) -> None:
        self.secrets = secrets
        self.first = Counter(used or {})
        self.counts: Counter[str] = Counter()
        self.folders: dict[str, str] = {}
        self.gpus = {uuid: f"GPU-{index}" for index, uuid in enumerate(secrets["uuid"], 1 + self.first["gpu"])}
        words = secrets.pairs("user", "domain")
        self.names: dict[str, tuple[str, str]] = {text: (kind, f"<{kind}>") for kind, text in words}
        self.names |= {host: ("host", node) for host, node in _nodes(secrets["host"], self.first["host"]).items()}
        for nodelist in secrets["nodelist"]:
            nodes = [self.names[host][1] for host in hosts_of(nodelist) if host in self.names]
            self.names[nodelist] = ("host", ",".join(nodes))
        self.kind = {text: kind for kind in (*reversed(PLACES), "address") for text in secrets[kind]}
        self.patterns = {
            "env": _pattern(secrets.pairs("env")),
            "literal": _pattern(secrets.pairs("address", *PLACES)),
            "name": _pattern(secrets.pairs("nodelist", "host", "domain", "user")),
        }
        self.memory: dict[tuple[bool, str], str] = {}

    def used(self) -> dict[str, int]:
        """How many pseudonyms are taken by now, as a scrubber of further results needs it."""
        hosts = len({host.partition(".")[0] for host in self.secrets["host"]})
        own = {"host": hosts, "gpu": len(self.gpus), "dir": len(self.folders)}
        return {kind: self.first[kind] + number for kind, number in own.items()}

    def text(self, value: str) -> str:
        """A text in words."""
        key = (False, value)
        if key not in self.memory:
            self.memory[key] = self.words(value)
        return self.memory[key]

    def symbol(self, value: str) -> str:
        """A name of a kernel, an operator or an API call."""
        key = (True, value)
        if key not in self.memory:
            self.memory[key] = self.literals(value)
        return self.memory[key]

    def words(self, value: str) -> str:
        value = self.patterns["env"].sub(lambda m: self.count("env", "<env>"), value)
        value = self.literals(_PATH.sub(lambda m: self.path(m[0]), value))
        return self.patterns["name"].sub(lambda m: self.count(*self.names[m[0]]), value)

    def literals(self, value: str) -> str:
        """Replaces what can be distinguished from anything else wherever it stands."""
        value = self.patterns["literal"].sub(lambda m: self.literal(m[0]), value)
        value = UUID.sub(self.gpu, value)
        return ADDRESS.sub(lambda m: self.address(m[0]), value)

    def count(self, kind: str, new: str) -> str:
        self.counts[kind] += 1
        return new

    def literal(self, text: str) -> str:
        kind = self.kind[text]
        new = {"address": "<ip>", "path": self.folder(text) if kind == "path" else ""}.get(kind, f"<{kind}>")
        return self.count("address" if kind == "address" else "path", new)

    def address(self, text: str) -> str:
        secret = is_address(text) and text not in self.secrets.public
        return self.count("address", "<ip>") if secret else text

    def gpu(self, match: re.Match[str]) -> str:
        uuid = match[1].lower()
        if match[0] != match[1]:
            self.gpus.setdefault(uuid, f"GPU-{self.first['gpu'] + len(self.gpus) + 1}")
        return self.count("uuid", self.gpus.get(uuid, "<uuid>"))

    def path(self, path: str) -> str:
        new = self.placed(path)
        return path if new == path else self.count("path", new)

    def placed(self, path: str) -> str:
        if library := _LIBRARY.fullmatch(path):
            return f"<python>/{library[1]}"
        for kind, place in self.secrets.pairs("sweep", "root", "work"):
            if place not in self.secrets["home"] and f"{path}/".startswith(f"{place}/"):
                return f"<{kind}>{path[len(place) :]}"
        folder, _, name = path.rpartition("/")
        if SYSTEM.match(path) or (not folder and path not in self.kind):
            return path
        return self.folder(path) if path in self.secrets["home"] or not folder else f"{self.folder(folder)}/{name}"

    def folder(self, path: str) -> str:
        known = "<home>" if path in self.secrets["home"] else f"<dir{self.first['dir'] + len(self.folders) + 1}>"
        return self.folders.setdefault(path, known)

    def tree(self, value: Any) -> Any:
        """A JSON value. What names a job, or is a command of the user's own, is left out."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.tree(below) for below in value]
        if not isinstance(value, dict):
            return value
        new = {self.text(key): self.tree(below) for key, below in value.items()}
        for key, left_out in (("slurm", ("job_id", "partition")), ("alert", ("command",))):
            if isinstance(new.get(key), dict):
                new[key] |= {name: None for name in left_out if name in new[key]}
        return new

    def table(self, frame: pl.DataFrame, name: str) -> pl.DataFrame:
        """A table of this name."""
        return frame.with_columns(self.column(column, name) for column in frame.get_columns())

    def column(self, column: pl.Series, table: str) -> pl.Series:
        change: Callable[[str], str] = self.symbol if column.name == "name" and table in SYMBOLS else self.text
        if column.name.startswith("traceback"):
            change = self.tail
        if column.dtype == pl.String:
            old = column.drop_nulls().unique(maintain_order=True).to_list()
            return column.replace(old, [change(text) for text in old])
        if column.dtype == pl.List(pl.String):
            lists = [None if v is None else [t and change(t) for t in v] for v in column.to_list()]
            return pl.Series(column.name, lists, dtype=column.dtype)
        return column

    def tail(self, text: str) -> str:
        """A traceback. Where it was cut in front (analysis/readers/point_files.py), half a path may be there: the line
        goes."""
        return self.text(text.partition("\n")[2] if len(text) >= TAIL else text)


def nsys_copy(source: Path, target: Path, scrubber: Scrubber) -> None:
    """Write the export anew: only what is kept ever reaches the file. sqlite3.DatabaseError where it is none."""
    with closing(sqlite3.connect(target.absolute().as_uri(), uri=True, isolation_level=None)) as db:
        db.create_function("scrubbed", 1, _cell(scrubber.text), deterministic=True)
        db.create_function("scrubbed_symbol", 1, _cell(scrubber.symbol), deterministic=True)
        for name, value in (("journal_mode", "OFF"), ("synchronous", "OFF"), ("temp_store", "MEMORY")):
            db.execute(f"PRAGMA {name} = {value}")
        db.execute("ATTACH ? AS source", (f"{source.absolute().as_uri()}?mode=ro",))
        listed = "SELECT name, sql FROM source.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        schema = dict(db.execute(listed).fetchall())
        columns = {t: [r[1:3] for r in db.execute(f'PRAGMA source.table_info("{t}")')] for t in schema}
        db.execute("BEGIN")
        symbol_ids(db, "source", columns)
        for table, sql in schema.items():
            db.execute(sql)
            if KEPT.fullmatch(table):
                db.execute(_insert(table, columns[table]))
        db.execute("COMMIT")


def symbol_ids(db: sqlite3.Connection, schema: str, columns: dict[str, list[Any]]) -> None:
    """Make the tables `symbol_ids` and `text_ids`: the strings that kept tables refer to."""
    for kind, names in _IDS.items():
        db.execute(f"CREATE TEMP TABLE {kind} (id INTEGER PRIMARY KEY)")
        for table in filter(KEPT.fullmatch, columns):
            for name in sorted({name for name, _ in columns[table]} & names):
                db.execute(
                    f'INSERT OR IGNORE INTO {kind} SELECT "{name}" FROM {schema}."{table}" WHERE "{name}" IS NOT NULL'
                )


def _insert(table: str, columns: list[Any]) -> str:
    def cell(name: str) -> str:
        plain, symbol = f'scrubbed(CAST("{name}" AS BLOB))', f'scrubbed_symbol(CAST("{name}" AS BLOB))'
        by_id = f"CASE WHEN id IN symbol_ids THEN {symbol} ELSE {plain} END"
        new = by_id if table == "StringIds" else symbol if table.startswith("ENUM_") else plain
        return f"""CASE typeof("{name}") WHEN 'text' THEN {new} WHEN 'blob' THEN NULL ELSE "{name}" END"""

    cells = ", ".join(f'"{name}"' if kind in ("INTEGER", "REAL") else cell(name) for name, kind in columns)
    return f'INSERT INTO main."{table}" SELECT {cells} FROM source."{table}" WHERE {_ROWS.get(table, "true")}'


def _cell(change: Callable[[str], str]) -> Callable[[bytes], str]:
    # As bytes: not all that programs put into a trace is UTF-8.
    return lambda value: change(value.decode(errors="replace"))


def kineto_copy(source: Path, target: Path, scrubber: Scrubber) -> None:
    """Write the trace anew, with known keys alone. ValueError where it is none."""
    trace = load(source)
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise ValueError("not a Kineto trace")
    for event in trace["traceEvents"]:
        change = scrubber.symbol if event.get("cat") in SYMBOL_CATEGORIES else scrubber.text
        for key, value in event.items():
            event[key] = change(value) if key == "name" and isinstance(value, str) else scrubber.tree(value)
    content = {key: trace[key] for key in KINETO_KEYS if key in trace}
    target.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 3, mtime=0))
