"""Pages of docs/ that are written from the code:

    python -m nightsweep.analysis.tools.docs

Those of PAGES, below; tests fail where one of them is not fresh.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import types
import typing
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, structs

from nightsweep.analysis.diagnosis import thresholds
from nightsweep.analysis.diagnosis.causes.rule import Rule
from nightsweep.analysis.diagnosis.causes.rules import RULES, list_thresholds
from nightsweep.analysis.tables.column import Column
from nightsweep.analysis.tables.points import TABLES
from nightsweep.analysis.tables.traces import TRACE_TABLES
from nightsweep.jobs.host.facts import ROOT, Host
from nightsweep.jobs.point import strategies
from nightsweep.jobs.point.point import FIELDS, setting_schema
from nightsweep.jobs.record import launch_files, phases
from nightsweep.jobs.record.record import Record
from nightsweep.jobs.sweep.order import Order

WRITTEN = "Written from `{}` by `python -m nightsweep.analysis.tools.docs`; do not edit."


def table(head: str, rows: Iterable[str]) -> list[str]:
    """A table as lines of Markdown, of lines of cells."""
    return [f"| {head} |", "|---" * (head.count("|") + 1) + "|", *(f"| {row} |" for row in rows)]


def settings() -> str:
    """docs/settings.md: every setting with its values, default and meaning."""
    rows = []
    for name, field in FIELDS.items():
        spec = setting_schema(name)
        values = ", ".join(map(str, spec["enum"])) if "enum" in spec else spec["type"]
        only = field.metadata["only"]
        default = field.metadata["default"]
        shown = (
            "required" if default is dataclasses.MISSING else "" if default is None else json.dumps(default).strip('"')
        )
        rows.append(f"`{name}` | {only or 'all'} | {values} | {shown} | {field.metadata['text']}")
    about = (
        f"{WRITTEN.format('jobs/point/settings')} Each can stand in "
        "`base`, as a list in `axes`, and in `include` and `exclude` of a sweep."
    )
    listed = table("setting | workload | values | default | meaning", rows)
    return "\n".join(["# Settings of a point", "", about, "", *listed, ""])


def columns(schema: Mapping[str, Column]) -> list[str]:
    """A table's columns as lines of Markdown."""
    rows = (f"`{name}` | {one.dtype} | {one.text} | {one.source}" for name, one in schema.items())
    return table("column | type | meaning | from", rows)


def tables() -> str:
    """docs/tables.md: every table of a sweep with its columns."""
    about = "In results/SWEEP/tables, a Parquet file each; those of traces are in [trace-tables.md](trace-tables.md)."
    return _tables("Tables of a sweep", about, TABLES)


def trace_tables() -> str:
    """docs/trace-tables.md: every table of traces with its columns."""
    about = "What `nightsweep ingest` writes ([traces.md](traces.md)), a Parquet file each."
    return _tables("Tables of traces", about, TRACE_TABLES)


def _tables(title: str, about: str, group: Mapping[str, Mapping[str, Column]]) -> str:
    parts = [f"## {name}\n\n" + "\n".join(columns(schema)) for name, schema in group.items()]
    return "\n\n".join([f"# {title}", f"{about} {WRITTEN.format('analysis/tables')}", *parts]) + "\n"


def strategies_() -> str:
    """docs/strategies.md: every strategy, and notes on some."""
    rows = (f"`{name}` | {s.holds} | {s.exchanges} | {s.samples}" for name, s in strategies.STRATEGIES.items())
    head = ["# Strategies", "", WRITTEN.format("jobs/point/strategies.py"), ""]
    listed = table("strategy | a rank holds | ranks exchange | samples", rows)
    return "\n".join([*head, *listed, "", Path(strategies.__file__).with_name("strategies.notes.md").read_text()])


def diagnosis() -> str:
    """docs/diagnosis.md: how a diagnosis is read, every kind of cause and every threshold."""
    kinds = (f"`{rule.kind}` | {rule.cause} | {rule.text}{_reach(rule)}" for rule in RULES)
    limits = (
        f"`{name}` | {one.value:.12g} | {one.unit} | {one.text} | {one.source}"
        for name, one in list_thresholds().items()
    )
    parts = {
        "## Kinds": table("kind | cause | what it is and how its share is computed", kinds),
        "## Thresholds": table("name | value | unit | meaning | source", limits),
    }
    lines = [line for title, listed in parts.items() for line in (title, "", *listed, "")]
    return "\n".join([Path(thresholds.__file__).with_name("diagnosis.head.md").read_text(), *lines])


def _reach(rule: Rule) -> str:
    """How the rule's intervals are widened, narrowed or bounded, as sentences; empty where they are not."""
    text, below, above = "", rule.below, rule.above
    if (below, above) != (1, 1):
        text = f" The interval so found reaches {below:g} times as far below, and {above:g} times as far above."
    if rule.leaves_compute:
        text += (
            " The interval ends, at the latest, at the share of the step in which the device that computes least does "
            "not compute."
        )
    return text


FILES: dict[str, type[Struct]] = {
    "point.json": launch_files.Job,
    "record.json": Record,
    "attempts.jsonl": launch_files.Start,
    "run.json": Order,
    "facts-H.json": Host,
    "rankR.pid.json": launch_files.RankProcess,
    "rankR.phases.jsonl": phases.RankPhase,
    "rankR.exit.json": launch_files.RankExit,
    "rankR.result.json": launch_files.RankResult,
    "rankR.error.json": launch_files.RankError,
    "steps-rR.jsonl": launch_files.StepLine,
    "accuracy.jsonl": launch_files.EpochLine,
    "host-H.jsonl": launch_files.HostSample,
    "events-H.jsonl": launch_files.Event,
    "samplers-H.json": launch_files.SamplerProcesses,
}
"""The files of a launch whose fields docs/formats.md lists, and what each holds."""


def meanings(kind: type) -> dict[str, str]:
    """What each field of a Struct means: the text that stands under it in the source."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if one in (Struct, object) or not issubclass(one, Struct):
            continue
        body = ast.parse(inspect.getsource(one)).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


def values(kind: Any) -> str:
    """The values that a field's type allows, as JSON has them."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(dict.fromkeys(values(one) for one in inner))
    names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null", list: "array"}
    return names.get(origin or kind, "object")


def fields(kind: type[Struct], prefix: str = "") -> list[str]:
    """Rows of a Struct's fields, those of the Structs in it after the field that holds them: `failure.rank`,
    `hosts[].gpus[].uuid`. A Struct that an earlier field has too is not listed again."""
    rows, texts, listed = [], meanings(kind), set()
    for field in structs.fields(kind):
        name = prefix + field.encode_name
        rows.append(f"`{name}` | {values(field.type)} | {texts[field.name]}")
        for inner in (field.type, *typing.get_args(field.type)):
            if isinstance(inner, type) and issubclass(inner, Struct) and inner not in listed:
                listed.add(inner)
                rows += fields(inner, name + ("[]." if typing.get_origin(field.type) is list else "."))
    return rows


def formats() -> str:
    """docs/formats.md: what a launch writes, and every field of its JSON files."""
    lines = [Path(launch_files.__file__).with_name("formats.head.md").read_text(), "# Fields of the JSON files", ""]
    for name, kind in FILES.items():
        about = " ".join((kind.__doc__ or "").split())
        lines += [f"## {name}", "", about, "", *table("field | values | meaning", fields(kind)), ""]
    named = (f"`{name}` | {meaning}" for name, meaning in phases.PHASES.items())
    about = " ".join((phases.__doc__ or "").split())
    return "\n".join([*lines, "## Phases of a launch", "", about, "", *table("phase | meaning", named), ""])


PAGES = {
    "settings.md": settings,
    "strategies.md": strategies_,
    "tables.md": tables,
    "trace-tables.md": trace_tables,
    "diagnosis.md": diagnosis,
    "formats.md": formats,
}


def main() -> None:
    for name, page in PAGES.items():
        (ROOT / "docs" / name).write_text(page())


if __name__ == "__main__":
    main()
