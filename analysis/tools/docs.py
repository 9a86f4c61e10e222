"""Pages of docs/ that are written from the code:

    python -m analysis.tools.docs

docs/settings.md, docs/tables.md and docs/diagnosis.md; tests fail where one of them is not fresh.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from analysis.diagnosis import thresholds
from analysis.diagnosis.causes.rules import RULES
from analysis.tables.column import Column
from analysis.tables.points import TABLES
from analysis.tables.traces import TRACE_TABLES
from jobs.host.facts import ROOT
from jobs.point.point import FIELDS, setting_schema

WRITTEN = "Written from `{}` by `python -m analysis.tools.docs`; do not edit."


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
        rows.append(f"| `{name}` | {only or 'all'} | {values} | {shown} | {field.metadata['text']} |")
    head = [
        "# Settings of a point",
        "",
        f"{WRITTEN.format('jobs/point/settings')} Each can stand in "
        "`base`, as a list in `axes`, and in `include` and `exclude` of a sweep.",
        "",
        "| setting | workload | values | default | meaning |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, ""])


def columns(table: Mapping[str, Column]) -> list[str]:
    """A table's columns as lines of Markdown."""
    head = ["| column | type | meaning | from |", "|---|---|---|---|"]
    return head + [f"| `{n}` | {c.dtype} | {c.text} | {c.source} |" for n, c in table.items()]


def tables() -> str:
    """docs/tables.md: every table with its columns."""
    lines = ["# Tables", "", WRITTEN.format("analysis/tables"), ""]
    for title, group in (("results/<sweep>/tables", TABLES), ("Tables of nightsweep ingest", TRACE_TABLES)):
        lines += [f"## {title}", ""]
        for name, table in group.items():
            lines += [f"### {name}", "", *columns(table), ""]
    return "\n".join(lines)


def diagnosis() -> str:
    """docs/diagnosis.md: how a diagnosis is read, every kind of cause and every threshold."""
    kinds = [f"| `{rule.kind}` | {rule.cause} | {rule.text} |" for rule in RULES]
    limits = [
        f"| `{name}` | {t.value:.12g} | {t.unit} | {t.text} | {t.source} |" for name, t in thresholds.TABLE.items()
    ]
    head = Path(thresholds.__file__).with_name("diagnosis.head.md").read_text()
    return "\n".join(
        [
            head,
            "## Kinds",
            "",
            "| kind | cause | what it is and how its share is computed |",
            "|---|---|---|",
            *kinds,
            "",
            "## Thresholds",
            "",
            "| name | value | unit | meaning | source |",
            "|---|---|---|---|---|",
            *limits,
            "",
        ]
    )


PAGES = {"settings.md": settings, "tables.md": tables, "diagnosis.md": diagnosis}


def main() -> None:
    for name, page in PAGES.items():
        (ROOT / "docs" / name).write_text(page())


if __name__ == "__main__":
    main()
