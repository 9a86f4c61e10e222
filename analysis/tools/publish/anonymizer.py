"""Texts without who measured and where, by the kinds of `analysis/tools/publish/allowed.py`.

    anonymizer = Anonymizer(hosts=["HOST.DOMAIN"], uuids=[])
    anonymizer.text(Kind.WORDS, "rank 1 on HOST: /home/USER/x/jobs/rank/worker.py")
    # 'rank 1 on node1: <...>/jobs/rank/worker.py'

Nothing has to be known of a secret: what is not a word of Nightsweep's own source does not get through.
"""

from __future__ import annotations

import builtins
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import polars as pl

from nightsweep.analysis.tools.publish.allowed import COLUMNS, OWN_RANGES, Kind
from nightsweep.jobs.host.facts import ROOT

HIDDEN = "<...>"
UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_PARTLY_DIGITS = re.compile(
    r"(?<![\w:.])(?:[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5,19}"  # of a network card
    r"|(?=[0-9a-fA-F:]*::)[0-9a-fA-F:]*:[0-9a-fA-F]*\d[0-9a-fA-F.]*|(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}"  # IPv6
    r")(?![\w:])"
)
"""Addresses that would fall into numbers, which are published."""
_MAIL = re.compile(r"[\w.+%-]+@[\w-]+(?:\.[\w-]+)+")
_ATOM = re.compile(r"[\w./@~+%-]+")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+){0,2}(?:e[-+]?\d+)?(?:[KMGT]i?B|[mun]?s|%|x)?(?:/s)?")
_PUBLIC = re.compile(r"(?:nccl|cuda|cu)[A-Z]\w*|(?:aten|nccl|c10d|autograd)")
_SPLIT = re.compile(r"[^A-Za-z0-9]+")
_PATHS = re.compile(r"[/@~\\]")
_OWNER_PARTS = 3
"""Parts of an absolute path that say whose it is, whatever their words: the empty one before its first slash, then as
in /home/USER and /scratch/PROJECT."""
_PAGE = "nightsweep/analysis/report/page"
SOURCES = (
    *("nightsweep/jobs/**/*.py", "nightsweep/analysis/**/*.py", "config/*.yaml", "docs/*.md"),
    *(f"{_PAGE}/*.*", f"{_PAGE}/charts/*", f"{_PAGE}/timeline/*"),  # not those of D3, which are not our own
)


@cache
def vocabulary() -> frozenset[str]:
    """Lower-case words of Nightsweep's own source and pages, and the names of Python's exceptions."""
    pages = [path.read_text() for pattern in SOURCES for path in ROOT.glob(pattern)]
    words = {word for page in pages for word in _SPLIT.split(page.lower())}
    words |= {name.lower() for name in dir(builtins)}
    return frozenset(word for word in words if word and not word.isdigit())


def is_plain(text: str) -> bool:
    """Whether it is a number, or consists of words of our own. Letters with digits count as one word."""
    if _NUMBER.fullmatch(text) or _PUBLIC.fullmatch(text):
        return True
    # Numbers alone that are no number (above) may be an address.
    words = [word for word in _SPLIT.split(text.lower()) if word]
    return not all(map(str.isdigit, words)) and all(word in vocabulary() for word in words if not _is_count(word, text))


def _is_count(word: str, text: str) -> bool:
    """Whether it is a number beside words, as in `step_7`, and not the number of a host, as in `gpu-7`."""
    return word.isdigit() and "-" not in text


def short_name(host: str) -> str:
    """The first label of a host's name."""
    return host.partition(".")[0]


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


class Anonymizer:
    """Publishes texts by their kind; a host, GPU or name has the same pseudonym wherever it stands.

    Args:
        hosts: names of hosts, short or with their domain; the two of one host have the same pseudonym.
        uuids: of GPUs, as NVML writes them.
        used: how many pseudonyms are taken by results that the copy joins, by word (host, gpu, sweep, data, weights).
    """

    def __init__(self, hosts: Iterable[str], uuids: Iterable[str], used: Mapping[str, int] | None = None) -> None:
        self.used = Counter({"host": 0, "gpu": 0} | dict(used or {}))
        self.replaced: Counter[str] = Counter()
        self._numbers: dict[tuple[str, str], int] = {}
        short = sorted({short_name(host) for host in hosts}, key=_natural)
        # Where a host is really called node2, another one must not be published under this name.
        words = ("node", "host", "machine", "computer")
        self._host_word = next(w for w in words if not any(re.fullmatch(rf"{w}\d+", name) for name in short))
        for name in short:
            self._number("host", name)
        for uuid in uuids:
            self._number("gpu", _bare(uuid))
        self._hosts = re.compile("|".join(rf"(?<!\w){re.escape(n)}(?:\.[\w.-]*\w)?(?!\w)" for n in short) or "(?!)")
        self._memory: dict[tuple[Kind, str, str], str | None] = {}

    def text(self, kind: Kind, value: str, name: str = "data") -> str | None:
        """What is published of a text; `name`: of its column or key."""
        key = (kind, value, name if kind is Kind.NAME else "")
        if key not in self._memory:
            self._memory[key] = self._new(kind, value, name)
            if self._memory[key] != value:
                self.replaced[kind.name.lower()] += 1
        return self._memory[key]

    def tree(self, value: Any, kinds: Mapping[str, Kind], path: str = "") -> Any:
        """A JSON value: keys that are words of our own, and texts by the kind of their path."""
        if isinstance(value, dict):
            at = f"{path}." if path else ""
            return {key: self.tree(below, kinds, f"{at}{key}") for key, below in value.items() if is_plain(key)}
        if isinstance(value, list):
            return [self.tree(below, kinds, path) for below in value]
        if not isinstance(value, str):
            return value
        kind = kinds.get(path) or kinds.get(f"{path.rpartition('.')[0]}.*") or Kind.OUT
        return self.text(kind, value, path.rpartition(".")[2])

    def table(self, frame: pl.DataFrame) -> pl.DataFrame:
        """A table; columns of text that are not listed become null."""
        new = frame.with_columns(
            self.column(column, COLUMNS.get(column.name, Kind.OUT)) for column in frame.get_columns()
        )
        where, value = OWN_RANGES
        if where in frame.columns and "name" in frame.columns:
            ranges = self.column(frame["name"], Kind.WORDS)
            new = new.with_columns(name=pl.when(pl.col(where) == value).then(ranges).otherwise("name"))
        return new

    def column(self, column: pl.Series, kind: Kind) -> pl.Series:
        """A column, of this kind where it holds text."""
        if column.dtype == pl.List(pl.String):
            lists = [None if v is None else [t and self.text(kind, t) for t in v] for v in column.to_list()]
            return pl.Series(column.name, lists, dtype=column.dtype)
        if column.dtype not in (pl.String, pl.Categorical):
            return column
        old = column.drop_nulls().unique(maintain_order=True).to_list()
        return column.cast(pl.String).replace(old, [self.text(kind, text, column.name) for text in old])

    def _new(self, kind: Kind, value: str, name: str) -> str | None:
        match kind:
            case Kind.FACT:
                return _without_addresses(value)
            case Kind.HOST:
                return f"{self._host_word}{self._number('host', short_name(value))}" if value else value
            case Kind.GPU:
                return f"GPU-{self._number('gpu', _bare(value))}" if value else value
            case Kind.NAME:
                word = "sweep" if name == "name" else name
                return value if is_plain(value) else f"{word}{self._number(word, value)}"
            case Kind.SYMBOL:
                is_plainly_named = not (_PATHS.search(value) or UUID.search(value))
                return _without_addresses(value) if is_plainly_named else self._words(value)
            case Kind.WORDS:
                return self._words(value)
            case Kind.AXES:
                known = json.loads(value).items()
                return json.dumps({self._plain("axis", key): self._plain("value", one) for key, one in known})
            case Kind.OUT:
                return None

    def _plain(self, word: str, value: Any) -> Any:
        """A number, or words of our own, as they are; else a pseudonym."""
        return f"{word}{self._number(word, value)}" if isinstance(value, str) and not is_plain(value) else value

    def _number(self, word: str, name: str) -> int:
        """The number of a pseudonym: that which the name has, or the next one."""
        if (word, name) not in self._numbers:
            self.used[word] += 1
            self._numbers[word, name] = self.used[word]
        return self._numbers[word, name]

    def _words(self, value: str) -> str:
        """Word by word; what is between the words stays."""
        value = self._hosts.sub(lambda match: f"{self._host_word}{self._number('host', short_name(match[0]))}", value)
        value = _PARTLY_DIGITS.sub(HIDDEN, _MAIL.sub(HIDDEN, value))
        pseudonyms = re.compile(rf"{self._host_word}\d+")
        return _ATOM.sub(lambda m: m[0] if pseudonyms.fullmatch(m[0]) else _atom(m[0]), value)


def _without_addresses(text: str) -> str:
    for pattern in (_MAIL, UUID, ADDRESS, _PARTLY_DIGITS):
        text = pattern.sub(HIDDEN, text)
    return text


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


def _atom(text: str) -> str:
    """A word, or of a path as many of its last parts as are plain."""
    core = text.rstrip(".")
    parts = core.split("/")
    if len(parts) == 1 or _NUMBER.fullmatch(core):
        return text if not core or set(core) <= set("./@~+%-_") or is_plain(core) else HIDDEN
    most = len(parts) - _OWNER_PARTS if parts[0] in ("", "~") else len(parts)
    kept = 0
    while kept < most and is_plain(parts[-1 - kept]):
        kept += 1
    if kept == len(parts):
        return text
    return "/".join([HIDDEN, *parts[len(parts) - kept :]])
