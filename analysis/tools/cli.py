"""The command `nightsweep`.

nightsweep check config/demo.yaml --preset smoke --list
nightsweep doctor --profile profiles/slurm --configfile config/demo.yaml
nightsweep retry config/demo.yaml
nightsweep watch results
nightsweep publish results/demo --out demo-public
nightsweep publish results/demo --into data/h200
nightsweep figures data/h200 --out figures
nightsweep export --perfetto results/demo/points/ID --out window.json.gz
nightsweep ingest traces/*.sqlite --out tables
nightsweep diagnose traces/*.sqlite

What a subcommand needs is imported by it, so that none waits for the others'.

Exit status: 0 done, 1 the doctor found what will not work, or publish a secret, 2 the sweep or command line is wrong.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.sweep.labels import plural
from jobs.host.terminal import HarmlessStream
from jobs.record.failures import is_disk_full
from jobs.record.json_files import FormatError

if TYPE_CHECKING:
    from jobs.sweep.sweep import SweepError

EXIT_WRONG = 2
EXTRAS = {"torch": "train", "snakemake_interface_executor_plugins": "workflow", "submitit": "workflow"}
"""Of modules that a plain installation lacks, the extra of the package that brings them."""
EXIT_PIPE = 141  # what a shell gives for a program ended by SIGPIPE


def parser() -> argparse.ArgumentParser:
    """The command line. A subcommand is a function `(arguments) -> exit status` set as `run`."""
    top = argparse.ArgumentParser(prog="nightsweep", description="Sweeps of multi-GPU training jobs.")
    version = importlib.metadata.version("nightsweep")
    top.add_argument("--version", action="version", version=f"%(prog)s {version}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    check_ = commands.add_parser("check", help="check a sweep and tell its size, before anything runs")
    check_.add_argument("config", type=Path, metavar="CONFIG", help="sweep file, such as config/demo.yaml")
    check_.add_argument("--preset", metavar="P", help="preset of the file to lay over it")
    check_.add_argument("--list", action="store_true", help="list the points: id and the settings that vary")
    check_.add_argument("--json", action="store_true", help="print JSON")
    check_.set_defaults(run=check)
    doctor_ = commands.add_parser("doctor", help="check this Slurm cluster, before a sweep runs on it")
    doctor_.add_argument("--folder", type=Path, metavar="DIR", help="where results go (results, or this folder)")
    doctor_.add_argument(
        "--configfile", type=Path, metavar="CONFIG", help="sweep to compare, under --profile, with what is allowed here"
    )
    doctor_.add_argument("--preset", metavar="P", help="preset of the sweep")
    doctor_.add_argument(
        "--profile", type=Path, metavar="DIR", help="profile that it will run with, such as profiles/slurm"
    )
    doctor_.add_argument("--partition", metavar="NAME", help="partition of the jobs (the profile's, or the default)")
    doctor_.add_argument("--account", metavar="NAME", help="account of the jobs (the profile's)")
    doctor_.add_argument("--nodes", type=int, default=2, metavar="N", help="nodes to probe at most (2)")
    doctor_.add_argument("--json", action="store_true", help="print JSON")
    doctor_.set_defaults(run=examine)
    retry_ = commands.add_parser("retry", help="let the next run measure points again that were lost or cancelled")
    retry_.add_argument("config", type=Path, metavar="CONFIG", help="sweep file")
    retry_.add_argument("--preset", metavar="P", help="preset of the file to lay over it")
    retry_.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="results folder (results)")
    retry_.set_defaults(run=retry)
    orphans_ = commands.add_parser("orphans", help="list measured points that the sweep file no longer has")
    orphans_.add_argument("config", type=Path, metavar="CONFIG", help="sweep file; points of its presets are kept, too")
    orphans_.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="results folder (results)"
    )
    orphans_.add_argument("--remove", action="store_true", help="delete them: raw data, tables, diagnoses and logs")
    orphans_.set_defaults(run=orphans)
    watch_ = commands.add_parser("watch", help="look at a sweep while it runs: points, GPUs, what needs attention")
    watch_.add_argument("results", type=Path, metavar="RESULTS", help="results folder, or results/SWEEP")
    watch_.add_argument("--once", action="store_true", help="look once, and end")
    watch_.add_argument("--json", action="store_true", help="print JSON: a document, or one a line without --once")
    watch_.add_argument("--interval", type=seconds, default=2.0, metavar="S", help="seconds between looks (2)")
    watch_.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="keep the report of the points measured so far in this HTML file; it reloads until the sweep has ended",
    )
    watch_.set_defaults(run=watch)
    publish_ = commands.add_parser("publish", help="copy results for the web, without who ran them and where")
    publish_.add_argument("sweep", type=Path, metavar="RESULTS/SWEEP", help="folder of the sweep's results")
    where = publish_.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, metavar="DIR", help="folder to write, new or empty")
    where.add_argument("--into", type=Path, metavar="DIR", help="data set to add points to, or a new one")
    publish_.add_argument("--traces", action="store_true", help="traces too (with --out)")
    publish_.set_defaults(run=publish)
    figures_ = commands.add_parser("figures", help="draw figures, supplement and report again, from tables alone")
    figures_.add_argument("folder", type=Path, metavar="DIR", help="results/SWEEP, a copy of it, or a data set")
    figures_.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write to")
    figures_.set_defaults(run=figures)
    export_ = commands.add_parser("export", help="a window for Perfetto, tables as CSV")
    export_.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a folder of results, or traces of ranks")
    kind = export_.add_mutually_exclusive_group(required=True)
    for name, what in (
        ("perfetto", "trace events of traces, a folder of ingest, or a point's folder"),
        ("csv", "each table of a folder"),
    ):
        kind.add_argument(f"--{name}", dest="kind", action="store_const", const=name, help=what)
    export_.add_argument("--out", type=Path, required=True, metavar="PATH", help="file (Perfetto), or folder, to write")
    export_.add_argument("--steps", metavar="A-B", help="steps of the window (Perfetto)")
    export_.add_argument("--ms", metavar="A-B", help="window in ms from the trace's start (Perfetto)")
    export_.add_argument("--nvml", type=Path, metavar="LOG", help="log of the GPUs' counters beside bare traces")
    export_.set_defaults(run=export)
    ingest_ = commands.add_parser("ingest", help="traces (nsys exports and reports, Kineto JSON) to tables")
    ingest_.add_argument("traces", type=Path, nargs="+", metavar="TRACE", help="a trace, whoever made it")
    ingest_.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write the tables to")
    ingest_.set_defaults(run=ingest)
    diagnose_ = commands.add_parser("diagnose", help="why a GPU is idle or slow: causes, shares, remedies")
    diagnose_.add_argument(
        "paths", type=Path, nargs="+", metavar="PATH", help="traces of a run's ranks, its folder, or results/SWEEP"
    )
    diagnose_.add_argument("--nvml", type=Path, metavar="LOG", help="log of the GPUs' counters (nvml-HOST.arrow)")
    diagnose_.add_argument("--ranks", type=several, nargs="+", metavar="N", help="also predict the step on N ranks")
    diagnose_.add_argument("--json", action="store_true", help="print JSON")
    diagnose_.set_defaults(run=diagnose)
    wrap_ = commands.add_parser(
        "wrap",
        help="run a training script once, measured, traced and diagnosed",
        usage="nightsweep wrap [--steps N] [--traced-steps N] [--timeout-min M] COMMAND ...",
    )
    wrap_.add_argument("--steps", type=whole, default=20, metavar="N", help="steps to time, after 5 of warm-up (20)")
    wrap_.add_argument("--traced-steps", type=whole, default=3, metavar="N", help="steps to trace; 0: no trace (3)")
    wrap_.add_argument(
        "--timeout-min", type=seconds, default=60.0, metavar="M", help="minutes for each of the runs (60)"
    )
    wrap_.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="torchrun ... train.py ..., python train.py, or other",
    )
    wrap_.set_defaults(run=wrap)
    compare_ = commands.add_parser("compare", help="what changed between two points or traces, and if it is noise")
    compare_.add_argument("a", type=Path, metavar="A", help="a trace, a folder of tables, or a point's folder")
    compare_.add_argument("b", type=Path, metavar="B", help="the other one")
    compare_.add_argument("--json", action="store_true", help="print JSON")
    compare_.set_defaults(run=compare)
    return top


def seconds(text: str) -> float:
    """A time between two looks, as the command line gives it."""
    value = float(text)
    if not 0.1 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 86400")
    return value


def several(text: str) -> int:
    """A number of ranks, as the command line gives it."""
    value = int(text)
    if not 2 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text} is not between 2 and 1000000")
    return value


def whole(text: str) -> int:
    """A number of steps, as the command line gives it."""
    value = int(text)
    if not 0 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1000000")
    return value


def wrap(arguments: argparse.Namespace) -> int:
    """`nightsweep wrap`."""
    from analysis.tools import wrap as command

    given = arguments
    words = given.command[given.command[:1] == ["--"] :]
    return command.wrap(words, max(2, given.steps), given.traced_steps, 60 * given.timeout_min)


def watch(arguments: argparse.Namespace) -> int:
    """`nightsweep watch`."""
    from analysis.tools.watch import view
    from analysis.tools.watch.state import LiveError

    given = arguments
    try:
        return view.follow(given.results, given.once, given.json, given.interval, given.report)
    except LiveError as error:
        print(f"nightsweep watch: {error}", file=sys.stderr)
        return EXIT_WRONG


def publish(arguments: argparse.Namespace) -> int:
    """`nightsweep publish`."""
    from analysis.tools.publish import publish as publishing
    from analysis.tools.publish import published_set

    if arguments.into is not None:
        if arguments.traces:
            print("nightsweep publish: a data set holds no traces; expected --traces with --out alone", file=sys.stderr)
            return EXIT_WRONG
        return published_set.grow(arguments.sweep, arguments.into)
    return publishing.publish(arguments.sweep, arguments.out, arguments.traces)


def figures(arguments: argparse.Namespace) -> int:
    """`nightsweep figures`."""
    from analysis.tables import parquet
    from analysis.tools.publish import publish as publishing
    from jobs.sweep.file import one_line

    try:
        publishing.require(arguments.folder)
        publishing.draw_again(arguments.folder, arguments.out, arguments.out / "report.html")
    except (publishing.PublishError, *parquet.FAULTS) as error:
        print(f"nightsweep figures: {one_line(str(error))}", file=sys.stderr)
        return EXIT_WRONG
    return 0


def export(arguments: argparse.Namespace) -> int:
    """`nightsweep export`."""
    from analysis.tools.export import export as command

    given = arguments
    if given.steps and given.ms:
        print("nightsweep export: --steps and --ms: expected one of them", file=sys.stderr)
        return EXIT_WRONG
    return command.export(given.paths, given.kind, given.out, given.steps, given.ms, given.nvml)


def ingest(arguments: argparse.Namespace) -> int:
    """`nightsweep ingest`."""
    from analysis.ingest import trace_tables

    return trace_tables.ingest(arguments.traces, arguments.out)


def diagnose(arguments: argparse.Namespace) -> int:
    """`nightsweep diagnose`."""
    from analysis.tools import diagnose as command

    return command.diagnose(arguments.paths, arguments.nvml, arguments.json, arguments.ranks)


def compare(arguments: argparse.Namespace) -> int:
    """`nightsweep compare`."""
    from analysis.diagnosis import comparison as comparing

    return comparing.compare(arguments.a, arguments.b, arguments.json)


def retry(arguments: argparse.Namespace) -> int:
    """`nightsweep retry`: set aside the records of points that say nothing about the points themselves."""
    from jobs.record import lost
    from jobs.sweep import rounds
    from jobs.sweep.sweep import SweepError, load

    try:
        sweep = load(arguments.config, arguments.preset)
    except SweepError as error:
        return refuse(arguments.config, error)
    results = arguments.results / sweep.name
    if not results.is_dir():
        print(f"nightsweep retry: {results}: no such folder; expected results of this sweep", file=sys.stderr)
        return EXIT_WRONG
    points = rounds.all_ids(results, (point.id for point in sweep.points))
    reasons = {point: lost.set_aside(results / "points" / point) for point in points}
    found = {point: reason for point, reason in reasons.items() if reason}
    for point, reason in found.items():
        print(f"{point} {reason}")
    print(f"{len(found)} of {plural(len(points), 'point')} set aside" + ("; run the sweep again" if found else ""))
    return 0


def orphans(arguments: argparse.Namespace) -> int:
    """`nightsweep orphans`: list points that an edited sweep file no longer has; delete them where asked."""
    from analysis.tools.orphans import AtWorkError, find_orphans, remove_points
    from jobs.sweep.sweep import SweepError, load

    try:
        results = arguments.results / load(arguments.config).name
        found = find_orphans(arguments.config, results)
    except SweepError as error:
        return refuse(arguments.config, error)
    if not results.is_dir():
        print(f"nightsweep orphans: {results}: no such folder; expected results of this sweep", file=sys.stderr)
        return EXIT_WRONG
    try:
        if arguments.remove:
            remove_points(results, found)
    except AtWorkError as error:
        print(f"nightsweep orphans: {error}", file=sys.stderr)
        return EXIT_WRONG
    print("".join(f"{point}\n" for point in found), end="")
    hint = " removed" if arguments.remove else "; --remove deletes them" if found else ""
    print(f"{plural(len(found), 'point')} of {results} not in the sweep{hint}")
    return 0


def refuse(config: Path, error: SweepError) -> int:
    for line in error.errors:
        print(f"{config}: {line}", file=sys.stderr)
    return EXIT_WRONG


def check(arguments: argparse.Namespace) -> int:
    """`nightsweep check`."""
    from analysis.tools import size
    from jobs.sweep.data_folders import missing_folders
    from jobs.sweep.sweep import SweepError, load

    try:
        sweep = load(arguments.config, arguments.preset)
    except SweepError as error:
        return refuse(arguments.config, error)
    if missing := missing_folders(sweep.points):
        for data, number in missing.items():
            print(f"{arguments.config}: data: {data}: no such folder ({plural(number, 'point')})", file=sys.stderr)
        return EXIT_WRONG
    print(size.as_json(sweep, arguments.list) if arguments.json else size.as_text(sweep, arguments.list))
    return 0


def examine(arguments: argparse.Namespace) -> int:
    """`nightsweep doctor`."""
    from jobs.slurm import profile
    from jobs.slurm.doctor import doctor
    from jobs.sweep.sweep import SweepError, load

    given = arguments
    if given.configfile and not given.profile:
        print("nightsweep doctor: --configfile: expected the --profile that it will run with, too", file=sys.stderr)
        return EXIT_WRONG
    try:
        settings = profile.read(given.profile) if given.profile else profile.Profile()
        sweep = load(given.configfile, given.preset) if given.configfile else None
    except profile.ProfileError as error:
        print(f"nightsweep doctor: {error}", file=sys.stderr)
        return EXIT_WRONG
    except SweepError as error:
        return refuse(given.configfile, error)
    folder = given.folder or doctor.default_folder()
    wish = doctor.Wish(folder, given.partition, given.account, given.nodes, settings, sweep)
    return doctor.report(wish, given.json)


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit status."""
    arguments = parser().parse_args(argv)
    try:
        if arguments.run is watch:  # which draws on the terminal, and cleans its texts itself
            return int(arguments.run(arguments))
        with redirect_stdout(HarmlessStream(sys.stdout)), redirect_stderr(HarmlessStream(sys.stderr)):
            status: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # `nightsweep check --list | head`: the reader is gone, and Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        lacks = f"{error.name} is not installed; pip install 'nightsweep[{EXTRAS[error.name]}]' brings it"
        print(f"nightsweep: {lacks}", file=sys.stderr)
        return EXIT_WRONG
    except FormatError as error:
        print(f"nightsweep: {error}", file=sys.stderr)
        return EXIT_WRONG
    except OSError as error:
        if error.filename is None and not is_disk_full(error):
            raise
        print(f"nightsweep: {f'{error.filename}: {error.strerror}' if error.filename else error}", file=sys.stderr)
        return EXIT_WRONG
    return status


if __name__ == "__main__":
    sys.exit(main())
