"""docs/claims.md: each claim of the paper, and what the tables of a sweep say of it.

python -m nightsweep.analysis.paper.claims results/paper/tables
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from nightsweep.analysis.paper.claims.claim import CONTRADICTED, INCONCLUSIVE, MARGIN, Verdict
from nightsweep.analysis.paper.claims.claims import judge
from nightsweep.analysis.paper.claims.time_shares import where_time_goes
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.sweep.effect import FEWEST
from nightsweep.analysis.sweep.interval import CONFIDENCE
from nightsweep.analysis.sweep.labels import plural

PAGE = Path(__file__).parents[4] / "docs/claims.md"
_HEAD = """# Claims of the paper

Written by `python -m nightsweep.analysis.paper.claims TABLES`; do not edit. Measured on: {where}; other
sets of `data/` have verdicts of theirs in their README.

The claims are those of "Profiling and optimization of multi-card GPU machine learning jobs" (arXiv 2505.22905) and of
its sibling (arXiv 2503.15252), as far as their texts are known. Each number compares points that differ in the
named setting alone; over several such pairs it is the geometric mean of ratios. Times are compared within a night, for
a machine's load differs from one to the next; runs of a night that has one side only do not count, nor do points that
something outside of their job disturbed ([protocol.md](protocol.md)). Two ratios are compared within nights that have
both. In brackets: 95 % interval (Student's t over repeats, or over nights where these disagree). A part of a claim is
*supported* where its whole interval is on the claimed side, *contradicted* where it is on the other, or, of a ratio,
within {margin:.0%} of 1, *inconclusive* where it has both sides, and *not tested* with fewer than {fewest} repeats a
side. Of many parts some are decided by chance: a part whose p-value is above {alpha:.2f} after Holm's correction over
the {parts} parts that are tested is inconclusive, too. A claim is contradicted if a part is, else inconclusive if one
is, else not tested if one is not; the number in the table is that part's.

| claim | verdict | effect | repeats a side | points |
|---|---|---|---|---|
"""


def row(verdict: Verdict) -> str:
    """A claim's line of the table."""
    part = verdict.chief
    effect = part.number() if part.effect else "-"
    rests_on = [part] if verdict.status in (CONTRADICTED, INCONCLUSIVE) else [p for p in verdict.parts if p.decides]
    n = min((p.effect.n for p in rests_on if p.effect), default=0)
    claim = verdict.claim
    link = f"[{claim.id}](#{claim.id.lower()})"
    return f"| {link} {claim.text} | {verdict.status} | {effect} | {n} | {len(verdict.points)} |"


def section(verdict: Verdict, tables: dataset.Tables) -> str:
    """A claim with its parts and points."""
    lines = [f"## {verdict.claim.id}", "", verdict.claim.text, "", f"**{verdict.status}**: {verdict.sentence()}", ""]
    lines += [f"- {part.text()}{'' if part.decides else ' (for information only)'}" for part in verdict.parts]
    if verdict.left_out:
        lines += ["", f"Left out as disturbed (docs/protocol.md): {plural(verdict.left_out, 'point')}."]
    if verdict.claim.note:
        lines += ["", verdict.claim.note]
    if verdict.status in (CONTRADICTED, INCONCLUSIVE):
        sides = where_time_goes(verdict, tables)
        head = "Where the time of a step goes, in those of these points that have a trace:"
        lines += ["", head if sides else "No trace of these points tells where their time goes."]
        lines += ["", *(f"- {side}: {parts}" for side, parts in sides.items())] if sides else []
    if verdict.points:
        lines += ["", f"Points: {' '.join(f'`{point}`' for point in verdict.points)}"]
    return "\n".join(lines) + "\n"


def page(tables: dataset.Tables) -> str:
    """The page."""
    ok = tables["points"].filter(pl.col("status") == "ok")
    where = ", ".join(ok["accelerator"].drop_nulls().unique().sort()) or "nothing yet"
    days = sorted(ok["started_at"].drop_nulls().str.slice(0, 10))
    where += f", {days[0]} to {days[-1]}" if days else ""
    verdicts = judge(tables)
    rows = "".join(row(verdict) + "\n" for verdict in verdicts)
    sections = "\n".join(section(verdict, tables) for verdict in verdicts)
    tested = sum(part.corrected is not None for verdict in verdicts for part in verdict.parts)
    head = _HEAD.format(where=where, fewest=FEWEST, margin=MARGIN, alpha=1 - CONFIDENCE, parts=tested)
    return head + rows + "\n" + sections


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m nightsweep.analysis.paper.claims", description="Judge the claims of the paper."
    )
    parser.add_argument("tables", type=Path, help="folder of the sweep's tables (parquet)")
    parser.add_argument("--out", type=Path, default=PAGE, help="file to write (docs/claims.md)")
    args = parser.parse_args(argv)
    if not (args.tables / "points.parquet").is_file():
        parser.error(f"{args.tables / 'points.parquet'}: no such file; expected a sweep's tables")
    args.out.write_text(page(dataset.load(args.tables)))


if __name__ == "__main__":
    main()
