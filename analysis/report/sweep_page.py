"""The report of a sweep: one HTML file that holds all it shows and opens without a network.

    python -m nightsweep.analysis.report --tables results/demo/tables --figures results/demo/figures \
        --records results/demo/points --out results/demo/report.html

Each point's own page is in the same file, drawn from data within it when it is asked for: one file can be mailed,
published, and put into Snakemake's own report, and of 1,000 points it stays below 10 MB (analysis/report/point_pages.py
says what is cut for that). Of more points, the table's rows and that data are in a folder beside it
(analysis/report/beside.py). Templates, style and scripts are the files of page/, which are put into the page as they
are.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from nightsweep.analysis.figures import captions, style
from nightsweep.analysis.figures.causes import known_points
from nightsweep.analysis.paper.claims.claim import CONTRADICTED, INCONCLUSIVE
from nightsweep.analysis.paper.claims.claims import judge
from nightsweep.analysis.paper.claims.time_shares import where_time_goes
from nightsweep.analysis.report import beside, causes, pictures, point_pages, records, summary, table, traces, trust
from nightsweep.analysis.report.interim import Interim
from nightsweep.analysis.sweep import dataset, nights, variance
from nightsweep.analysis.sweep.effect import FEWEST
from nightsweep.analysis.sweep.starts import Starts
from nightsweep.jobs.record.record import Record

PAGE = Path(__file__).parent / "page"
SCRIPTS = (
    "d3/d3.min.js",
    "scroll.js",
    "data.js",
    "elements.js",
    "comparison.js",
    "charts/scales.js",
    "timeline/bars.js",
    "timeline/path.js",
    "timeline/paint.js",
    "timeline/timeline.js",
    "picks.js",
    "charts/chart.js",
    "charts/models.js",
    "charts/by_setting.js",
    "charts/memory.js",
    "charts/step_times.js",
    "charts/scaling.js",
    "table.js",
    "points_csv.js",
    "zoom.js",
    "perfetto.js",
    "point.js",
    "print.js",
)
"""In this order, for each uses what stands before it."""
MOST_SETTINGS = 12
"""Columns of settings beside the results; where there are more, the reader asks for them."""


def render(
    tables: dataset.Tables,
    figure_folder: Path,
    found: list[Record],
    logs: Mapping[str, records.Log] | None = None,
    folder: Path | None = None,
    interim: Interim | None = None,
    found_traces: Mapping[str, Any] = traces.NONE,
) -> str:
    """The page. `found`: records of points (record.json); `logs`: by point, the log to show the end of; `folder`:
    beside the page, for what is too much for it (analysis/report/beside.py), without which the page holds all;
    `interim`: how far the sweep is, of one that still runs, whose page reloads; `found_traces`: as
    analysis/report/traces.py has them."""
    points = tables["points"]
    verdicts = judge(tables)
    drawn = pictures.figures(tables, figure_folder)
    starts = variance.list_starts(tables)
    known, blind = causes.lines(tables)
    listed, data = table.point_table(points), point_pages.as_json(tables, found, logs or {}, found_traces)
    apart = folder is not None and points.height > beside.MOST
    if folder is not None and apart:
        listed, data = beside.write(folder, listed, data), ""
    names = points.select(nights.SET).to_series().drop_nulls().unique().sort().to_list()  # of sets that are joined
    names = names or points["sweep"].drop_nulls().unique().sort().to_list()
    return _page().render(
        title=", ".join(names) or "no points",
        interim=interim,
        headline=summary.headline(points),
        gpus=bool((points["device_used"] == "cuda").any()),
        held=summary.held_time(tables),
        failures=summary.failures(tables, waiting=interim is not None),
        warnings=summary.warnings(tables, found),
        extremes=summary.extremes(tables),
        sources=pictures.sources(tables),
        scripts=SCRIPTS,
        figures={place: [one for one in drawn if one["place"] == place] for place in ("main", "supplement", "claims")},
        left_out=(left_out := pictures.missing_figures(figure_folder)),
        failed=any(style.FAILED in line for line in left_out),
        pairs=tables["pairs"].to_dicts(),
        claims=verdicts if any(verdict.points for verdict in verdicts) else [],
        where={
            v.claim.id: where_time_goes(v, tables) if v.status in (CONTRADICTED, INCONCLUSIVE) else {} for v in verdicts
        },
        fewest=FEWEST,
        points=listed,
        script=f"{folder.name}/{beside.SCRIPT}" if folder is not None and apart else None,
        shown=beside.MOST,
        most_settings=MOST_SETTINGS,
        fixed=captions.settings(points),
        troubles=summary.troubles(tables),
        why={"lines": known, "blind": blind, "lost": causes.lost_hours(tables), "changes": causes.changes(tables)}
        | {
            "trials": causes.trials(tables),
            "predictions": causes.predictions(tables),
            "seen": known_points(tables)["point_id"].n_unique(),
        },
        costs=trust.costs(tables),
        clocks=trust.clocks(tables),
        conditions=trust.conditions(tables),
        identical=Starts.of(points, tables.scan("steps")).identical_pairs(),
        components=trust.components(starts),
        precision=trust.precision(starts),
        events=trust.events(tables),
        energy=points["energy_j"].drop_nulls().len(),
        mfu=points["mfu_percent"].drop_nulls().len(),
        provenance=records.provenance(found),
        records=len(found),
        data=data,
    )


@functools.cache
def _page() -> jinja2.Template:
    """The page's template, compiled once for a report that is written again and again."""
    loader = jinja2.FileSystemLoader(PAGE)
    env = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    env.globals["inline"] = lambda name: (PAGE / name).read_text()
    return env.get_template("report.html.j2")
