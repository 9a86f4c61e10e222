"""docs/claims.md: each claim of the paper, and what the tables of one or several sets of points say of it.

python -m nightsweep.analysis.paper.claims data/*/tables
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from nightsweep.analysis.paper.claims.claim import CONTRADICTED, INCONCLUSIVE, MARGIN, Claim, Verdict
from nightsweep.analysis.paper.claims.claims import CLAIMS, judge
from nightsweep.analysis.paper.claims.time_shares import where_time_goes
from nightsweep.analysis.sweep import dataset, nights
from nightsweep.analysis.sweep.effect import FEWEST
from nightsweep.analysis.sweep.interval import CONFIDENCE
from nightsweep.analysis.sweep.labels import plural
from nightsweep.jobs.record.input_error import InputError

PAGE = Path(__file__).parents[4] / "docs/claims.md"
_HEAD = """# Claims of the paper

Written by `python -m nightsweep.analysis.paper.claims TABLES [TABLES ...]`; do not edit.

{where}

The claims are those of "Profiling and optimization of multi-card GPU machine learning jobs" (arXiv 2505.22905) and of
its sibling (arXiv 2503.15252), as far as their texts are known. Each number compares points that differ in the
named setting alone; over several such pairs it is the geometric mean of ratios. Times are compared within a night, for
a machine's load differs from one to the next; runs of a night that has one side only do not count, nor do points that
something outside of their job disturbed ([protocol.md](protocol.md)). Two ratios are compared within nights that have
both. Each kind of GPU is judged by itself. In brackets: 95 % interval (Student's t over repeats, or over nights where
these disagree); of several settings it tells how well these were measured, not what others would give: their own values
may lie outside of it, and are beside it. A part of a claim is *supported* where its whole interval is on the claimed
side, *contradicted* where it is on the other, or, of a ratio, within {margin:.0%} of 1, *inconclusive* where it has
both sides, and *not tested* with fewer than {fewest} repeats a side. Of many parts some are decided by chance: a part
whose p-value is above {alpha:.2f} after Holm's correction over all parts that are tested on its kind of GPU is
inconclusive, too. A claim is contradicted if a part is, else inconclusive if one is, else not tested if one is not;
the number in the table is that part's. A claim has no line of a kind of GPU on which none of its parts is tested, if
one is on another.

| claim | GPU | verdict | effect | repeats a side | points |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Judged:
    """What is said of the claims on one kind of GPU (`gpu`; empty where none is known)."""

    gpu: str
    tables: dataset.Tables
    verdicts: tuple[Verdict, ...]

    def where(self) -> str:
        """What was measured, when, in which sets, and how many parts of claims that tests."""
        ok = self.tables["points"].filter(pl.col("status") == "ok")
        days = sorted(ok["started_at"].drop_nulls().str.slice(0, 10))
        sets = ok.select(nights.SET).to_series().drop_nulls().unique().sort()
        inside = f" in {', '.join(f'`{name}`' for name in sets)}" if len(sets) else ""
        when = f", {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
        tested = sum(part.corrected is not None for verdict in self.verdicts for part in verdict.parts)
        return f"- {self.gpu or 'no GPU known'}: {plural(ok.height, 'point')}{inside}{when}; parts tested: {tested}"


def judge_by_gpu(tables: dataset.Tables) -> list[Judged]:
    """The claims on each kind of GPU that has ok points, that with most first."""
    points = tables["points"]
    kinds = Counter(points.filter(pl.col("status") == "ok")["accelerator"].drop_nulls().sort()).most_common()
    if not kinds:
        return [Judged("", tables, judge(tables))]
    parts = [(kind, dataset.Tables({**tables.frames, "points": points.filter(accelerator=kind)})) for kind, _ in kinds]
    return [Judged(kind, own, judge(own)) for kind, own in parts]


def row(verdict: Verdict, gpu: str) -> str:
    """A claim's line of the table."""
    part = verdict.chief
    effect = part.number() if part.effect else "-"
    rests_on = [part] if verdict.status in (CONTRADICTED, INCONCLUSIVE) else [p for p in verdict.parts if p.decides]
    n = min((p.effect.n for p in rests_on if p.effect), default=0)
    claim = verdict.claim
    link = f"[{claim.id}](#{claim.id.lower()})"
    return f"| {link} {claim.text} | {gpu or '-'} | {verdict.status} | {effect} | {n} | {len(verdict.points)} |"


def section(claim: Claim, shown: Sequence[tuple[Judged, Verdict]]) -> str:
    """A claim, with its parts and points on each kind of GPU."""
    lines = [f"## {claim.id}", "", claim.text, *(["", claim.note] if claim.note else [])]
    for judged, verdict in shown:
        on = f"{judged.gpu}, " if judged.gpu else ""
        lines += ["", f"{on}**{verdict.status}**: {verdict.sentence()}", ""]
        lines += [f"- {part.text()}{'' if part.decides else ' (for information only)'}" for part in verdict.parts]
        if verdict.left_out:
            lines += ["", f"Left out as disturbed (docs/protocol.md): {plural(verdict.left_out, 'point')}."]
        if verdict.status in (CONTRADICTED, INCONCLUSIVE):
            sides = where_time_goes(verdict, judged.tables)
            head = "Where the time of a step goes, in those of these points that have a trace:"
            lines += ["", head if sides else "No trace of these points tells where their time goes."]
            lines += ["", *(f"- {side}: {parts}" for side, parts in sides.items())] if sides else []
        lines += _points(verdict.points)
    return "\n".join(lines) + "\n"


def _points(ids: Sequence[str]) -> list[str]:
    """The points, by set where there are several."""
    lines = []
    for of, own in itertools.groupby(ids, lambda point: point.rpartition("/")[0]):
        names = " ".join(f"`{point.rpartition('/')[2]}`" for point in own)
        lines += ["", f"Points{f' of `{of}`' if of else ''}: {names}"]
    return lines


def page(tables: dataset.Tables) -> str:
    by_gpu = judge_by_gpu(tables)
    rows, sections = "", []
    for claim, *verdicts in zip(CLAIMS, *(judged.verdicts for judged in by_gpu), strict=True):
        each = list(zip(by_gpu, verdicts, strict=True))
        shown = [both for both in each if any(part.corrected is not None for part in both[1].parts)] or each[:1]
        rows += "".join(row(verdict, judged.gpu) + "\n" for judged, verdict in shown)
        sections.append(section(claim, shown))
    where = "\n".join(["Measured on:", "", *(judged.where() for judged in by_gpu)])
    head = _HEAD.format(where=where, fewest=FEWEST, margin=MARGIN, alpha=1 - CONFIDENCE)
    return head + rows + "\n" + "\n".join(sections)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m nightsweep.analysis.paper.claims", description="Judge the claims of the paper."
    )
    parser.add_argument("tables", type=Path, nargs="+", help="folders of the tables (Parquet) of a sweep or data set")
    parser.add_argument("--out", type=Path, default=PAGE, help="file to write (docs/claims.md)")
    args = parser.parse_args(argv)
    for folder in args.tables:
        if not (folder / "points.parquet").is_file():
            parser.error(f"{folder / 'points.parquet'}: no such file; expected a sweep's tables")
    try:
        tables = dataset.load_sets(args.tables)
    except InputError as error:
        parser.error(str(error))
    args.out.write_text(page(tables))


if __name__ == "__main__":
    main()
