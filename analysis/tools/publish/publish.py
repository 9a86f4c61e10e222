"""A copy of a sweep's results for the web: no environment, user, host, address or working path of where it ran.

    nightsweep publish results/demo --out demo-public
    nightsweep publish results/demo --out demo-public --traces

DIR gets the tables, sweep.json, the rounds of remedies and the points' records with pseudonyms
(analysis/tools/publish/scrub.py says which), figures and the report drawn from these, and manifest.json: every file
with its SHA-256, and how much was replaced. With --traces also Nsight Systems exports and Kineto's traces; never
.nsys-rep files, which hold the environment, and never logs.

At the end every file is read again and searched for every secret that analysis/tools/publish/leaks.py found, and only
then DIR appears; until then the copy is the folder .DIR.unpublished beside it. Names are sought as words: not in
symbols, nor in what the report says of every sweep. Of pictures the bytes are searched; their texts are those of tables
and records.

Exit status: 0 done, 1 a secret was left and nothing is published, 2 nothing to publish, or DIR is not empty.
"""

from __future__ import annotations

import hashlib
import html
import importlib.metadata
import json
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl

from analysis.figures import style
from analysis.report.__main__ import main as write_report
from analysis.tools import docs
from analysis.tools import draw as every
from analysis.tools.publish import leaks
from analysis.tools.publish.leaks import PLACES, SYMBOLS, Secrets, bounded, load
from analysis.tools.publish.scrub import SYMBOL_CATEGORIES, Scrubber, kineto_copy, nsys_copy, symbol_ids
from jobs.host.facts import ROOT, output_of

LEFT, WRONG = 1, 2
NAMES = ("nodelist", "host", "domain", "user", "env")
"""Kinds that are sought as words."""
FEWEST = 5
"""Letters of a text that is sought in compressed bytes: a shorter one turns up by chance."""
PAGES = (".html", ".rst", ".md", ".csv")
"""Files of plain text."""
BLOCK = 1 << 24
"""Bytes of a file that are searched at a time."""
_PICTURE = re.compile(r"data:image/webp;base64,[\w+/=]+")
_DATA = re.compile(r'(?<=<script type="application/json" id="data">).*?(?=</script>)', re.DOTALL)


class PublishError(Exception):
    """Nothing can be published; the text says where, what is wrong and what was expected."""


def require(sweep: Path) -> None:
    """Raise PublishError unless there are tables."""
    points = sweep / "tables/points.parquet"
    if not points.is_file():
        raise PublishError(f"{points}: no such file; expected the results of a sweep, with its tables")
    for path in sorted(points.parent.glob("*.parquet")):
        try:
            pl.read_parquet_schema(path)
        except pl.exceptions.PolarsError:
            raise PublishError(f"{path}: cut, or no table; expected Parquet, as `snakemake tables` writes it") from None


def require_room(out: Path) -> None:
    """Raise PublishError unless the copy can be made here."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise PublishError(f"{out}: there is something already; expected a new or an empty folder")


def copy_tables(sweep: Path, out: Path, scrubber: Scrubber) -> None:
    (out / "tables").mkdir()
    for path in sorted((sweep / "tables").glob("*.parquet")):
        scrubber.table(pl.read_parquet(path), path.stem).write_parquet(out / "tables" / path.name)


OF_SWEEP = ("sweep.json", "remedies/round*.json", "points/*/point.json", "points/*/record.json")
"""sweep.json, the rounds of remedies, and the records of all points."""


def copy_json(sweep: Path, out: Path, scrubber: Scrubber, names: Sequence[str] = OF_SWEEP) -> None:
    """The files of these names."""
    for path in sorted(path for name in names for path in sweep.glob(name)):
        content = load(path)
        if not isinstance(content, dict):
            print(f"{path}: left out: not a JSON object, or cut", file=sys.stderr)
            continue
        target = out / path.relative_to(sweep)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(scrubber.tree(content), indent=1) + "\n")


def copy_traces(sweep: Path, out: Path, scrubber: Scrubber) -> None:
    """The traces that can be read."""
    for pattern, copy in (("sqlite", nsys_copy), ("json.gz", kineto_copy)):
        for path in sorted(sweep.glob(f"points/*/traced/trace-r*.{pattern}")):
            target = out / path.relative_to(sweep)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                copy(path, target, scrubber)
            except (sqlite3.DatabaseError, ValueError) as error:
                target.unlink(missing_ok=True)
                print(f"{path}: left out: {error}", file=sys.stderr)
    reports = len(list(sweep.glob("points/*/traced*/*.nsys-rep")))
    if reports:
        print(f"{reports} .nsys-rep files are left out: they hold the environment, and cannot be rid of it")


def draw_again(folder: Path, figures: Path, page: Path) -> None:
    """Figures and the report, from what is published alone."""
    lines = every.draw(folder / "tables", figures)
    print("".join(f"{line}\n" for line in lines), end="")
    inputs = ["--tables", str(folder / "tables"), "--figures", str(figures), "--records", str(folder / "points")]
    write_report([*inputs, "--out", str(page)])
    if failed := [line for line in lines if style.FAILED in line]:
        raise PublishError("; ".join(failed))


def write_manifest(out: Path, facts: dict[str, Any]) -> None:
    """What is published, by which program, and further facts."""
    files = [
        {"file": str(path.relative_to(out)), "bytes": path.stat().st_size, "sha256": _digest(path)}
        for path in sorted(path for path in out.rglob("*") if path.is_file() and path != out / "manifest.json")
    ]
    commit = output_of("git", "rev-parse", "HEAD", cwd=ROOT)
    program = {"version": importlib.metadata.version("nightsweep"), "commit": commit}
    content = {"nightsweep": program, **facts, "files": files}
    (out / "manifest.json").write_text(json.dumps(content, indent=1) + "\n")


def replaced(scrubber: Scrubber) -> dict[str, int]:
    """How much was replaced: places in distinct texts, by kind."""
    return dict(sorted(scrubber.counts.items()))


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@cache
def constants() -> str:
    """What the report, figures, captions and a data set's page say of every sweep: a user called `step` is not given
    away by it."""
    here = Path(__file__).parents[2]
    patterns = ("tools/publish/dataset.py", "report/*.py", "report/page/*", "figures/*.py", "sweep/*.py")
    files = [path for pattern in patterns for path in sorted(here.glob(pattern))]
    return "\n".join([*(path.read_text() for path in files), docs.tables()])


def strings(value: Any) -> Iterator[str]:
    """All texts of a JSON value, keys too."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            left += [*value, *(below for below in value.values() if type(below) not in (int, float))]
        elif isinstance(value, list):
            left += value


def texts(path: Path) -> Iterator[tuple[str, bool]]:
    """(text, whether it is a symbol) of a published file, as its readers see it."""
    content: Any = []
    if path.suffix == ".parquet":
        for column in pl.read_parquet(path).get_columns():
            symbol = column.name == "name" and path.stem in SYMBOLS
            words = [] if column.dtype.is_numeric() else column.unique().to_list()
            yield from ((text, symbol) for text in strings(words))
    elif path.suffix == ".sqlite":
        yield from cells(path)
    elif path.suffix in PAGES:
        page = _PICTURE.sub("", path.read_text())
        # Of the report also the data that its scripts and its links to CSV hold: \n and %0A are no part of a word.
        content = [html.unescape(unquote(_DATA.sub("", page))), *(json.loads(data) for data in _DATA.findall(page))]
    elif path.suffix in (".json", ".gz"):
        content = load(path)
        for event in content.get("traceEvents", ()):
            if event.get("cat") in SYMBOL_CATEGORIES:
                yield str(event.pop("name", "")), True
    yield from ((text, False) for text in strings(content))


def cells(path: Path) -> Iterator[tuple[str, bool]]:
    """The texts of an export."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        db.text_factory = lambda content: content.decode(errors="replace")
        listed = db.execute("SELECT name, sql FROM sqlite_master").fetchall()
        yield from ((sql or "", True) for _, sql in listed)
        columns = {t: [r[1:3] for r in db.execute(f'PRAGMA table_info("{t}")')] for t, _ in listed}
        symbol_ids(db, "main", columns)
        for table, names in columns.items():
            symbol = "id IN symbol_ids" if table == "StringIds" else str(table.startswith("ENUM_")).lower()
            for name, _ in names:
                where = f"""FROM "{table}" WHERE typeof("{name}") IN ('text', 'blob')"""
                yield from db.execute(f'SELECT DISTINCT CAST("{name}" AS TEXT), {symbol} {where}')


def raw(path: Path, secrets: Secrets, symbols: str) -> set[str]:
    """Kinds that the bytes of a binary file hold, whatever its readers make of them."""
    sought = [
        (kind, text.encode(), re.compile(bounded(text).encode()))
        for kind, text in secrets.pairs(*PLACES, *NAMES, "address", "uuid")
        if len(text) >= FEWEST and not (kind in NAMES and (text in symbols or text in constants()))
    ]
    found: set[str] = set()
    for block, first, last in blocks(path, 2 + max((len(text) for _, text, _ in sought), default=0)):
        for kind, text, pattern in sought:
            if text in block:
                whole = ((m.start() > 0 or first) and (m.end() < len(block) or last) for m in pattern.finditer(block))
                found |= {kind} if any(whole) else set()
    return found


def blocks(path: Path, overlap: int) -> Iterator[tuple[bytes, bool, bool]]:
    """A file in blocks that overlap, so that what is no longer than `overlap` - 2 lies whole in one with a byte before
    and after it; whether the block is the first one, and the last."""
    with path.open("rb") as stream:
        block, at = stream.read(BLOCK), 0
        while block:
            after = stream.read(BLOCK)
            yield block, at == 0, not after
            kept = block[-overlap:]
            at += len(block) - len(kept)
            block = kept + after if after else b""


def search(out: Path, secrets: Secrets) -> list[tuple[str, str]]:
    """(file, kind) of each secret that is left in a folder, also in the names of its files."""
    strong = {kind: _any(secrets[kind]) for kind in (*PLACES, "address", "uuid")}
    words = strong | {kind: _any(secrets[kind]) for kind in NAMES}
    every = _any([text for kind in words for text in secrets[kind]])
    found: set[tuple[str, str]] = set()
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        name = str(path.relative_to(out))
        passages = {(name, False), *texts(path)}
        spoken = constants() if path.suffix in PAGES else ""
        for text, symbol in (pair for pair in passages if every.search(pair[0])):
            for kind, pattern in (strong if symbol else words).items():
                hits = {match[0] for match in pattern.finditer(text)}
                if any(not re.search(bounded(hit), spoken) for hit in hits):
                    found.add((name, kind))
        if path.suffix in (".parquet", ".sqlite", ".png", ".pdf"):
            symbols = "\n".join(text for text, symbol in passages if symbol)
            found |= {(name, kind) for kind in raw(path, secrets, symbols)}
    return sorted(found)


def is_clean(folder: Path, out: Path, secrets: Secrets) -> bool:
    """Whether no secret is left in a folder that is to become `out`; each that is left gets a line."""
    left = search(folder, secrets)
    for file, kind in left:
        print(f"{out / file}: it still holds a secret ({kind}); nothing is published", file=sys.stderr)
    return not left


def _any(texts: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(bounded, texts)) or "(?!)")


def fill(sweep: Path, out: Path, secrets: Secrets, traces: bool) -> None:
    """Write all that is published."""
    scrubber = Scrubber(secrets)
    copy_tables(sweep, out, scrubber)
    copy_json(sweep, out, scrubber)
    if traces:
        copy_traces(sweep, out, scrubber)
    draw_again(out, out / "figures", out / "report.html")
    write_manifest(out, {"replaced": replaced(scrubber)})


def publish(sweep: Path, out: Path, traces: bool) -> int:
    """`nightsweep publish`; its exit status."""
    scratch = out.absolute().with_name(f".{out.name}.unpublished")
    try:
        require(sweep)
        require_room(out)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        secrets = leaks.collect(sweep)
        fill(sweep, scratch, secrets, traces)
        clean = is_clean(scratch, out, secrets)
        if clean:
            scratch.rename(out)
            files = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
            print(f"{out}: {len(files)} files, {sum(files) / 1e6:.1f} MB")
    except (PublishError, OSError) as error:
        print(f"nightsweep publish: {error}", file=sys.stderr)
        return WRONG
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0 if clean else LEFT
