"""The subcommands of `nightsweep`, each a function of its name from the command line's arguments to the exit status.

What one needs is imported by it, so that none waits for the others'. Each raises InputError where it is given what it
cannot use.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from nightsweep.analysis.sweep.labels import plural
from nightsweep.jobs.record.input_error import InputError

if TYPE_CHECKING:
    from nightsweep.jobs.sweep.sweep import SweepError

EXIT_WRONG = 2


def wrap(given: argparse.Namespace) -> int:
    from nightsweep.analysis.tools import wrap as command

    words = given.command[given.command[:1] == ["--"] :]
    return command.wrap(words, given.steps, given.traced_steps, 60 * given.timeout_min)


def watch(given: argparse.Namespace) -> int:
    from nightsweep.analysis.tools.watch import view

    return view.follow(given.results, given.once, given.json, given.interval, given.report)


def publish(given: argparse.Namespace) -> int:
    from nightsweep.analysis.tools.publish import publish as publishing
    from nightsweep.analysis.tools.publish import published_set

    if (given.sweep / "manifest.json").exists():
        raise InputError(f"{given.sweep}: is published already; expected results/SWEEP, as the workflow leaves it")
    if given.into is not None:
        if given.traces:
            raise InputError("a data set holds no traces; expected --traces with --out alone")
        return published_set.grow(given.sweep, given.into)
    return publishing.publish(given.sweep, given.out, given.traces)


def figures(given: argparse.Namespace) -> int:
    from nightsweep.analysis.tables import parquet
    from nightsweep.analysis.tools.publish import joined_sets
    from nightsweep.analysis.tools.publish import publish as publishing

    with parquet.faults_as_input_errors():
        for folder in given.folders:
            publishing.require(folder)
        with joined_sets.as_one(given.folders) as folder:
            publishing.draw_again(folder, given.out, given.out / "report.html")
    return 0


def export(given: argparse.Namespace) -> int:
    from nightsweep.analysis.tools.export import export as command

    if given.steps and given.ms:
        raise InputError("--steps and --ms: expected one of them")
    return command.export(given.paths, given.to, given.out, given.steps, given.ms, given.nvml)


def ingest(given: argparse.Namespace) -> int:
    from nightsweep.analysis.ingest import trace_tables

    return trace_tables.ingest(given.traces, given.out)


def diagnose(given: argparse.Namespace) -> int:
    from nightsweep.analysis.tools import diagnose as command

    return command.print_diagnosis(given.paths, given.nvml, given.json, given.ranks)


def compare(given: argparse.Namespace) -> int:
    from nightsweep.analysis.tools import compare as command

    return command.print_comparison(given.a, given.b, given.json)


def retry(given: argparse.Namespace) -> int:
    """`nightsweep retry`: set aside the records of points that say nothing about the points themselves."""
    from nightsweep.jobs.record import lost
    from nightsweep.jobs.sweep import rounds
    from nightsweep.jobs.sweep.driver import take_lock
    from nightsweep.jobs.sweep.sweep import SweepError, load

    try:
        sweep = load(given.config, given.preset)
    except SweepError as error:
        return refuse(given.config, error)
    results = given.results / sweep.name
    if not results.is_dir():
        raise InputError(f"{results}: no such folder; expected results of this sweep")
    points = rounds.all_ids(results, (point.id for point in sweep.points))
    with take_lock(results):  # a run reads the records of points that it has planned
        reasons = {point: lost.set_aside(results / "points" / point) for point in points}
    found = {point: reason for point, reason in reasons.items() if reason}
    for point, reason in found.items():
        print(f"{point} {reason}")
    print(f"{len(found)} of {plural(len(points), 'point')} set aside" + ("; run the sweep again" if found else ""))
    return 0


def orphans(given: argparse.Namespace) -> int:
    """`nightsweep orphans`: list points that an edited sweep file no longer has; delete them where asked."""
    from nightsweep.analysis.tools.orphans import find_orphans, remove_points
    from nightsweep.jobs.sweep.sweep import SweepError, load

    try:
        results = given.results / load(given.config).name
        found = find_orphans(given.config, results)
    except SweepError as error:
        return refuse(given.config, error)
    if not results.is_dir():
        raise InputError(f"{results}: no such folder; expected results of this sweep")
    if given.remove:
        remove_points(results, found)
    print("".join(f"{point}\n" for point in found), end="")
    hint = " removed" if given.remove else f"; --remove deletes {'it' if len(found) == 1 else 'them'}" if found else ""
    print(f"{plural(len(found), 'point')} of {results} not in the sweep{hint}")
    return 0


def refuse(config: Path, error: SweepError) -> int:
    for line in error.errors:
        print(f"{config}: {line}", file=sys.stderr)
    return EXIT_WRONG


def check(given: argparse.Namespace) -> int:
    from nightsweep.analysis.tools import size
    from nightsweep.jobs.sweep.sweep import SweepError, load

    try:
        sweep = load(given.config, given.preset)
    except SweepError as error:
        return refuse(given.config, error)
    asked = Counter(point.data for point in sweep.points if point.data not in ("builtin", None))
    if missing := {data: number for data, number in asked.items() if not Path(data).is_dir()}:
        for data, number in missing.items():
            print(f"{given.config}: data: {data}: no such folder ({plural(number, 'point')})", file=sys.stderr)
        return EXIT_WRONG
    print(size.as_json(sweep, given.list) if given.json else size.as_text(sweep, given.list))
    return 0


def doctor(given: argparse.Namespace) -> int:
    from nightsweep.jobs.slurm import profile
    from nightsweep.jobs.slurm.doctor import doctor as command
    from nightsweep.jobs.sweep.sweep import SweepError, load

    if given.configfile and not given.profile:
        raise InputError("--configfile: expected the --profile that it will run with, too")
    if given.preset is not None and not given.configfile:
        raise InputError("--preset: expected the --configfile that has it, too")
    settings = profile.read(given.profile) if given.profile else profile.Profile()
    try:
        sweep = load(given.configfile, given.preset) if given.configfile else None
    except SweepError as error:
        return refuse(given.configfile, error)
    folder = given.folder or Path("results" if Path("results").is_dir() else "")  # where a sweep would write
    wish = command.Wish(folder, given.partition, given.account, given.nodes, settings, sweep)
    return command.report(wish, given.json)
