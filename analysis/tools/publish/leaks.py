"""What of a sweep must not be published: who ran it, where, and in which environment.

    secrets = collect(Path("results/demo"))     # from its records, tables and traces, and of this machine

`analysis/tools/publish/scrub.py` replaces it; `analysis/tools/publish/publish.py` looks for what is left. What is the
same on every machine (the user `root`, the host `localhost`, `/usr/bin`) tells nothing and is no secret; nor is a word
of Nightsweep's own (`ddp`, `cuda`), nor a value of the environment that is short, a number, a version, a plain word
(unless its variable is called KEY, TOKEN, ...) or part of a fact that is published on purpose (`NVIDIA H200`). Root's
home, `/root`, is a secret.
"""

from __future__ import annotations

import getpass
import gzip
import ipaddress
import itertools
import json
import re
import socket
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from analysis.tables import points as tables
from analysis.tables.part_names import GROUPS
from jobs.host.facts import PACKAGES, ROOT
from jobs.point import point

PLACES = ("sweep", "root", "work", "home", "path")
"""Kinds that are folders. root: a checkout of Nightsweep; work: where its commands ran."""
SYMBOLS = ("activities", "timeline")
"""Tables whose column `name` holds names of kernels and operators."""
UUID = re.compile(r"(?:MIG-|GPU-)*([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})")
_IPV4 = r"(?<![\w.])(?<!==)(?<!version )(?:\d{1,3}\.){3}\d{1,3}(?![-+]?\w|\.\d)"
_IPV6 = r"(?<![\w:.])(?:f[cde]|[23][0-9a-fA-F])[0-9a-fA-F]{1,2}:[0-9a-fA-F:]+"
ADDRESS = re.compile(f"{_IPV4}|{_IPV6}")
SYSTEM = re.compile(r"/(?:usr|bin|sbin|lib|lib32|lib64|proc|sys|dev|etc)(?:/|$)|/(?:tmp|var|opt|mnt|data|home|run)$")
_HOME = re.compile(r"(?<![\w.])/(?:home|Users)/([\w.+@-]*\w)")
_ROOT = re.compile(r"(/[^\s'\":,;=]+?)/jobs/(?:[a-z_]+/)*[a-z_]+\.py")
_TELLING = re.compile(r"KEY|TOKEN|SECRET|PASS|CRED|AUTH")
_PLAIN = re.compile(r"[\W\d_]*|\d+(?:\.\d+)+(?:[-+.]\w+)*|[A-Za-z]+(?:,[A-Za-z]+)*")
_NAMED = {
    "host": "host hosts hostname host_name Hostname EXPORT_HOST DEVICE_DISPLAY_NAME HOSTNAME HOST SLURMD_NODENAME "
    "SLURM_SUBMIT_HOST SLURM_TOPOLOGY_ADDR MASTER_ADDR",
    "user": "user USER_NAME EXPORT_USER USER LOGNAME USERNAME SUDO_USER SLURM_JOB_USER",
    "home": "HOME",
    "work": "WORKING_DIR PWD SLURM_SUBMIT_DIR",
    "path": "data",
    "nodelist": "nodelist SLURM_NODELIST SLURM_JOB_NODELIST SLURM_STEP_NODELIST",
    "uuid": "uuid",
}
"""The kind of a value by the name of its variable, key, column or entry in a trace's metadata."""
_KIND = {name: kind for kind, names in _NAMED.items() for name in names.split()}
_COMMON = """root nobody user users host home work path env ip uuid dir domain node gpu cpu python sweep true false none
local localhost localdomain nightsweep cuda nccl gloo nsys kineto figures report record traced timed trace manifest
x86_64 aarch64 c.utf-8 en_us.utf-8"""


def _own_words() -> frozenset[str]:
    closed = [c for field in point.FIELDS for c in point.setting_schema(field).get("enum") or []]
    columns = [name for table in tables.TABLES.values() for name in table]
    listed = (*tables.TABLES, *GROUPS, *tables.STATUSES, *tables.REASONS, *PACKAGES, *_COMMON.split())
    return frozenset(str(word).lower() for word in (*closed, *columns, *listed))


_OWN = _own_words()


@dataclass(frozen=True)
class Secrets:
    """What was found, by kind: PLACES, user, host, domain, nodelist, env, address, uuid (bare, in lower case)."""

    found: Mapping[str, tuple[str, ...]]
    public: str  # facts that are published on purpose; what is part of them is no secret

    def __getitem__(self, kind: str) -> tuple[str, ...]:
        return self.found.get(kind, ())

    def pairs(self, *kinds: str) -> list[tuple[str, str]]:
        """(kind, text) of these kinds, the longest first: a part must not be replaced before the whole."""
        return sorted(((k, t) for k in kinds for t in self[k]), key=lambda pair: (-len(pair[1]), pair))


def bounded(text: str) -> str:
    """A pattern of this text where it is not part of a longer word or number. `_` and `-` end a word."""
    left = r"(?<![A-Za-z0-9])" if text[0].isalnum() else ""
    return left + re.escape(text) + (r"(?![A-Za-z0-9])" if text[-1].isalnum() else "")


def is_address(text: str) -> bool:
    """Whether it is the address of a machine, and not one that every machine has."""
    with suppress(ValueError):
        address = ipaddress.ip_address(text)
        return not (address.is_loopback or address.is_unspecified)
    return False


def hosts_of(nodelist: str) -> list[str]:
    """The names that a list of Slurm's, such as `gpu[01-03,7],login`, stands for."""
    parts = [re.split(r"\[([^\]]*)\]", part) for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodelist)]
    pieces = [[_range(p) if i % 2 else [p] for i, p in enumerate(part)] for part in parts]
    return ["".join(chosen) for piece in pieces for chosen in itertools.product(*piece)]


def _range(inside: str) -> list[str]:
    ends = [item.partition("-")[::2] for item in inside.split(",")]
    return [f"{n:0{len(a)}d}" for a, b in ends if (a + b).isdigit() for n in range(int(a), int(b or a) + 1)]


class _Collector:
    """Takes what is seen, and keeps what is a secret."""

    def __init__(self, public: str) -> None:
        self.public = public
        self.found: dict[str, dict[str, None]] = defaultdict(dict)

    def add(self, kind: str | None, text: str) -> None:
        """A text of this kind, or of none that is known."""
        self.seen(text)
        text = text.strip()
        if kind in PLACES:
            if text.startswith("/") and text.strip("/") and not SYSTEM.match(text):
                self.found[kind][text.rstrip("/")] = None
        elif kind == "nodelist":
            self.found[kind] |= {text: None} if "[" in text else {}
            for name in hosts_of(text):
                self.add("host", name)
        elif kind == "uuid":
            self.found[kind] |= {match[1].lower(): None for match in UUID.finditer(text)}
        elif kind and not is_address(text) and text.lower() not in _OWN and not re.fullmatch(r"[\d.]*", text):
            self.found[kind][text] = None
            short, _, domain = text.partition(".")
            if kind == "host" and domain:
                self.add("host", short)
                self.add("domain" if "." in domain else None, domain)

    def seen(self, text: str) -> None:
        """What shows itself in any text by its form."""
        self.found["uuid"] |= {m[1].lower(): None for m in UUID.finditer(text) if m[0] != m[1]}
        addresses = [m[0] for m in ADDRESS.finditer(text) if is_address(m[0])]
        self.found["address"] |= {address: None for address in addresses if address not in self.public}
        for match in _ROOT.finditer(text):
            self.found["root"][match[1]] = None
        for match in _HOME.finditer(text):
            self.found["home"][match[0]] = None
            if match[1].lower() not in _OWN:
                self.found["user"][match[1]] = None

    def variable(self, name: str, value: str) -> None:
        """A variable of the environment."""
        value, kind = value.strip().strip('"'), _KIND.get(name)
        self.add(kind, value)
        parts = [] if kind else re.split(r"[:;,]", value)
        for part in parts:
            self.add("path", part)
        long = len(value) > 3 if _TELLING.search(name) else len(value) > 5 and not _PLAIN.fullmatch(value)
        if long and value not in self.public and any(part and not part.startswith("/") for part in parts):
            self.add("env", value)

    def tree(self, value: Any, key: str = "") -> None:
        """A JSON value, under this key."""
        if isinstance(value, dict):
            for name, below in value.items():
                if key in ("env", "environment") and isinstance(below, str):
                    self.variable(name, below)
                elif (key, name) == ("alert", "command"):  # may be a call of a web service, with its key
                    self.add("env", below or "")
                else:
                    self.tree(below, name)
        elif isinstance(value, list):
            for below in value:
                self.tree(below, key)
        elif isinstance(value, str):
            self.add(_KIND.get(key), value)

    def table(self, path: Path) -> None:
        """The texts of a table; names of kernels are none."""
        for name, column in pl.read_parquet(path).to_dict().items():
            if column.dtype in (pl.String, pl.List(pl.String)) and not (name == "name" and path.stem in SYMBOLS):
                self.tree(column.explode().drop_nulls().unique(maintain_order=True).to_list(), name)

    def export(self, path: Path) -> None:
        """The metadata of an Nsight Systems export."""
        uuids = "SELECT 'uuid', uuid FROM TARGET_INFO_GPU"
        named = ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE", "META_DATA_EXPORT")
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            for query in (uuids, *(f"SELECT name, value FROM {table}" for table in named)):
                with suppress(sqlite3.DatabaseError):  # no such table, or no such file at all
                    for name, value in db.execute(query):
                        self.metadata(str(name).rpartition(":")[2], str(value or ""))

    def metadata(self, name: str, value: str) -> None:
        if name in ("DeviceEnvironment", "ENVIRONMENT_VARIABLE"):
            for variable in re.split(r";(?=[A-Za-z_]\w*=)", value):
                self.variable(*variable.partition("=")[::2])
        else:
            kind = _KIND.get(name, "path")
            self.add(kind, str(Path(value).parent) if kind == "path" and Path(value).suffix else value)


def load(path: Path) -> Any:
    """The content of a JSON file, also of a gzipped one; None where it is absent or cut."""
    try:
        content = path.read_bytes()
        return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    except (OSError, ValueError, EOFError, zlib.error):
        return None


def _head(path: Path) -> Any:
    """What a Kineto trace has in front of its events, which are most of it."""
    try:
        with gzip.open(path, "rt") as stream:
            return json.loads(stream.read(1 << 20).partition('"traceEvents"')[0].rstrip(", \n") + "}")
    except (OSError, ValueError, EOFError, zlib.error):
        return {k: v for k, v in (load(path) or {}).items() if k != "traceEvents"}


def _public(record: dict[str, Any]) -> str:
    """The facts of a record that are published on purpose."""
    settings = {k: v for k, v in (record.get("settings") or {}).items() if k != "data"}
    hosts = [{k: v for k, v in host.items() if k != "hostname"} for host in record.get("hosts") or []]
    return json.dumps([settings, hosts, record.get("software")])


def collect(sweep: Path) -> Secrets:
    """The secrets of a sweep's results and of this machine; always in the same order."""
    points = sweep / "points"
    records = [r for path in sorted(points.glob("*/record.json")) if isinstance(r := load(path), dict)]
    collector = _Collector("\n".join(map(_public, records)))
    collector.tree([*records, load(sweep / "sweep.json")])
    for pattern in ("attempts.jsonl", "*/facts-*.json", "*/rank*.exit.json", "*/rank*.pid.json"):
        for path in sorted(points.glob(f"*/{pattern}")):
            for match in re.finditer(r'"host(?:name)?": "([^"]*)"', path.read_text(errors="replace")):
                collector.add("host", match[1])
    for path in sorted((sweep / "tables").glob("*.parquet")):
        collector.table(path)
    for path in sorted(points.glob("*/traced/trace-r*.sqlite")):
        collector.export(path)
    for path in sorted(points.glob("*/traced/trace-r*.json.gz")):
        collector.tree(_head(path))
    here = {"sweep": sweep.resolve, "root": lambda: ROOT, "home": Path.home, "host": socket.gethostname}
    for kind, tell in [*here.items(), ("user", getpass.getuser), ("user", sweep.owner)]:
        with suppress(KeyError, RuntimeError, OSError):  # a container may know no name of its user
            collector.add(kind, str(tell()))
    return Secrets({kind: tuple(texts) for kind, texts in collector.found.items()}, collector.public)
