"""The command `nightsweep`.

nightsweep check config/demo.yaml --preset smoke --list
nightsweep doctor --profile profiles/slurm --configfile config/demo.yaml
nightsweep retry config/demo.yaml
nightsweep watch results
nightsweep publish results/demo --out demo-public
nightsweep publish results/demo --into data/h200
nightsweep figures data/h200-* --out figures
nightsweep export --to perfetto results/demo/points/ID --out window.json.gz
nightsweep ingest traces/*.sqlite --out tables
nightsweep diagnose traces/*.sqlite

Exit status: 0 done; 1 the doctor found what will not work, publish a secret, diagnose no step, ingest what it could not
read beside what it could, or the run of wrap failed; 2 the sweep, the input or the command line is wrong; 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from nightsweep.analysis.tools import commands
from nightsweep.analysis.tools.commands import EXIT_WRONG
from nightsweep.jobs.host.terminal import HarmlessStream, harmless
from nightsweep.jobs.record.failures import is_disk_full, os_error_line
from nightsweep.jobs.record.input_error import InputError

EXTRAS = {
    **dict.fromkeys(("opentelemetry", "prometheus_client", "tensorboardX"), "export"),
    **dict.fromkeys(("snakemake_interface_executor_plugins", "submitit"), "workflow"),
    "torch": "train",
}
"""Of packages that a plain installation lacks, the extra that brings them."""
FORMATS = ("csv", "otlp", "perfetto", "prometheus", "tensorboard")
EXIT_INTERRUPTED = 130  # what a shell gives for a program ended by SIGINT
EXIT_PIPE = 141  # what a shell gives for a program ended by SIGPIPE


def parser() -> argparse.ArgumentParser:
    """The command line: `name` is the subcommand, which has the name of its function in commands.py."""
    top = argparse.ArgumentParser(prog="nightsweep", description="Sweeps of multi-GPU training jobs.")
    version = importlib.metadata.version("nightsweep")
    top.add_argument("--version", action="version", version=f"%(prog)s {version}")
    names = top.add_subparsers(required=True, dest="name", metavar="COMMAND")
    check_ = names.add_parser("check", help="check a sweep and tell its size, before anything runs")
    check_.add_argument("config", type=Path, metavar="CONFIG", help="sweep file, such as config/demo.yaml")
    check_.add_argument("--preset", metavar="P", help="preset of the file to lay over it")
    check_.add_argument("--list", action="store_true", help="list the points: id and the settings that vary")
    check_.add_argument("--json", action="store_true", help="print JSON")
    doctor_ = names.add_parser("doctor", help="check this Slurm cluster, before a sweep runs on it")
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
    doctor_.add_argument("--nodes", type=whole_from(1), default=2, metavar="N", help="nodes to probe at most (2)")
    doctor_.add_argument("--json", action="store_true", help="print JSON")
    retry_ = names.add_parser("retry", help="set aside records that say nothing about their points")
    retry_.add_argument("config", type=Path, metavar="CONFIG", help="sweep file")
    retry_.add_argument("--preset", metavar="P", help="preset that the run had")
    retry_.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="results folder (results)")
    orphans_ = names.add_parser(
        "orphans", help="list measured points that the sweep file, or the script as it is now, no longer has"
    )
    orphans_.add_argument("config", type=Path, metavar="CONFIG", help="sweep file; points of its presets are kept, too")
    orphans_.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="results folder (results)"
    )
    orphans_.add_argument("--remove", action="store_true", help="delete them: raw data, tables, diagnoses and logs")
    watch_ = names.add_parser("watch", help="look at a sweep while it runs: points, GPUs, what needs attention")
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
    publish_ = names.add_parser("publish", help="copy results for the web, without who ran them and where")
    publish_.add_argument("sweep", type=Path, metavar="RESULTS/SWEEP", help="folder of the sweep's results")
    where = publish_.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, metavar="DIR", help="folder to write, new or empty")
    where.add_argument("--into", type=Path, metavar="DIR", help="data set to add points to, or a new one")
    publish_.add_argument("--traces", action="store_true", help="traces too (with --out)")
    figures_ = names.add_parser("figures", help="draw figures, supplement and report again, from tables alone")
    figures_.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help="results/SWEEP, a copy, or a data set; several: together"
    )
    figures_.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write to")
    export_ = names.add_parser("export", help="what was measured, for other tools: Perfetto, TensorBoard, CSV, ...")
    export_.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a folder of results, or traces of ranks")
    export_.add_argument("--to", required=True, choices=FORMATS, help="the tool or format (docs/formats.md)")
    export_.add_argument("--out", required=True, metavar="PATH", help="file or folder to write; of otlp an address")
    export_.add_argument("--steps", metavar="A-B", help="steps of the window (Perfetto)")
    export_.add_argument("--ms", metavar="A-B", help="window in ms from the trace's start (Perfetto)")
    export_.add_argument("--nvml", type=Path, metavar="LOG", help="log of the GPUs' counters beside bare traces")
    ingest_ = names.add_parser("ingest", help="traces (nsys exports and reports, Kineto JSON) to tables")
    ingest_.add_argument("traces", type=Path, nargs="+", metavar="TRACE", help="a trace, whoever made it")
    ingest_.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write the tables to")
    diagnose_ = names.add_parser("diagnose", help="why a GPU is idle or slow: causes, shares, remedies")
    diagnose_.add_argument(
        "paths", type=Path, nargs="+", metavar="PATH", help="traces of a run's ranks, its folder, or results/SWEEP"
    )
    diagnose_.add_argument("--nvml", type=Path, metavar="LOG", help="log of the GPUs' counters (nvml-HOST.arrow)")
    diagnose_.add_argument(
        "--ranks", type=whole_from(2), nargs="+", metavar="N", help="also predict the step on N ranks"
    )
    diagnose_.add_argument("--json", action="store_true", help="print JSON")
    wrap_ = names.add_parser(
        "wrap",
        help="run a training script once, measured, traced and diagnosed",
        usage="nightsweep wrap [--steps N] [--traced-steps N] [--timeout-min M] COMMAND ...",
    )
    wrap_.add_argument(
        "--steps", type=whole_from(2), default=20, metavar="N", help="steps to time, after 5 of warm-up (20)"
    )
    wrap_.add_argument(
        "--traced-steps", type=whole_from(0), default=3, metavar="N", help="steps to trace; 0: no trace (3)"
    )
    wrap_.add_argument(
        "--timeout-min", type=seconds, default=60.0, metavar="M", help="minutes for each of the runs (60)"
    )
    wrap_.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="torchrun ... train.py ..., python train.py, or other",
    )
    compare_ = names.add_parser("compare", help="what changed between two points or traces, and if it is noise")
    compare_.add_argument("a", type=Path, metavar="A", help="a trace, a folder of tables, or a point's folder")
    compare_.add_argument("b", type=Path, metavar="B", help="the other one")
    compare_.add_argument("--json", action="store_true", help="print JSON")
    return top


def seconds(text: str) -> float:
    """A time, such as the one between two looks, as the command line gives it."""
    with contextlib.suppress(ValueError):
        if 0.1 <= float(text) <= 86_400:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is not a number between 0.1 and 86400")


def whole_from(least: int) -> Callable[[str], int]:
    """What reads a whole number, such as one of steps, from the command line."""

    def whole(text: str) -> int:
        with contextlib.suppress(ValueError):
            if least <= int(text) <= 1_000_000:
                return int(text)
        raise argparse.ArgumentTypeError(f"{text} is not a whole number between {least} and 1000000")

    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit status."""
    arguments = parser().parse_args(argv)
    try:
        run: Callable[[argparse.Namespace], int] = getattr(commands, arguments.name)
        if arguments.name == "watch":  # which draws on the terminal, and cleans its texts itself
            return run(arguments)
        with redirect_stdout(HarmlessStream(sys.stdout)), redirect_stderr(HarmlessStream(sys.stderr)):
            status = run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # `nightsweep check --list | head`: the reader is gone, and Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        lacks = f"{package} is not installed; it comes with the extra nightsweep[{EXTRAS[package]}]"
        return refuse(arguments.name, lacks)
    except InputError as error:
        return refuse(arguments.name, str(error))
    except OSError as error:
        if error.filename is None and not is_disk_full(error):
            raise
        return refuse(arguments.name, os_error_line(error))
    return status


def refuse(name: str, why: str) -> int:
    """Say in one line why a subcommand did nothing; the exit status."""
    print(f"nightsweep {name}: {harmless(' '.join(why.split()))}", file=sys.stderr)
    return EXIT_WRONG


if __name__ == "__main__":
    sys.exit(main())
