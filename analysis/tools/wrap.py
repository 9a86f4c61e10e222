"""`nightsweep wrap torchrun ... train.py ...`: one run of a script on this machine, measured, traced and diagnosed
like a point of a sweep; and the sweep that would try what the diagnosis advises.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from nightsweep.analysis.diagnosis import screen
from nightsweep.analysis.diagnosis.thresholds import NOISE
from nightsweep.analysis.diagnosis.verdict import Diagnosis
from nightsweep.analysis.tools.diagnose import diagnose
from nightsweep.jobs.host.facts import ROOT
from nightsweep.jobs.host.terminal import harmless
from nightsweep.jobs.point.point import Point, complete, defaults
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.record.json_files import read_json, write_json
from nightsweep.jobs.record.raw_files import measured_record
from nightsweep.jobs.record.record import Record, ending
from nightsweep.jobs.sweep import code

RANKS = ("nproc_per_node", "num_gpus", "num_processes")
"""Options of launchers that say how many ranks there are."""
MEETING = (
    *("nnodes", "node_rank", "num_nodes", "num_machines", "machine_rank", "hostfile", "master_addr", "master_port"),
    *("main_process_ip", "main_process_port", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf"),
)
"""Options that say where ranks meet, which Nightsweep says itself."""
CHOICE = ("include", "exclude", "i", "e")
"""Options of `deepspeed` alone, of hosts and their GPUs."""
FLAGS = ("standalone", "multi_gpu", "use_env")
"""Options without a value that Nightsweep gives itself, or has no use for."""


@dataclass(frozen=True)
class Given:
    """A command line taken apart: what starts the ranks, with which options, how many ranks, and the script's words."""

    launcher: str
    words: list[str]
    ranks: int | None = None
    options: tuple[str, ...] = ()


def take_apart(words: Sequence[str]) -> Given:
    """The launcher of a command line and what it launches. Raises InputError."""
    if not words:
        raise InputError("no command; expected one, such as: nightsweep wrap torchrun train.py")
    first, rest = Path(words[0]).name, list(words[1:])
    if first.startswith("python") and rest[:2] in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
        first, rest = "torchrun", rest[2:]
    if first == "accelerate" and rest[:1] == ["launch"]:
        rest = rest[1:]
    elif first not in ("torchrun", "deepspeed"):
        return Given("none", list(words))
    place = next((n for n, word in enumerate(rest) if word.endswith(".py") or word in ("-m", "--module")), None)
    if place is None:
        raise InputError(f"{first} starts no Python script; expected a word that ends with .py, or -m MODULE")
    script = ["-m", *rest[place + 1 :]] if rest[place] in ("-m", "--module") else rest[place:]
    ranks, options = split_options(rest[:place])
    return Given(first, script, ranks or configured(options), tuple(options))


def split_options(words: Sequence[str]) -> tuple[int | None, list[str]]:
    """How many ranks options of a launcher ask for, and those that are to be handed on. Raises InputError."""
    ranks, kept, left = None, [], list(words)
    while left:
        word = left.pop(0)
        name, _, value = word.partition("=")
        plain = name.lstrip("-").replace("-", "_")
        if plain in (*RANKS, *MEETING):
            value = value or (left.pop(0) if left else "")
        if plain in RANKS:
            ranks = count(value)
        elif plain in CHOICE:
            raise InputError(f"{word}: expected --num_gpus N, with CUDA_VISIBLE_DEVICES where it matters which")
        elif plain in ("nnodes", "num_nodes", "num_machines") and value not in ("1", "1:1"):
            raise InputError(f"{word}: one node is wrapped at a time; a sweep takes several")
        elif plain not in (*RANKS, *MEETING, *FLAGS):
            kept.append(word)
    return ranks, kept


def configured(options: Sequence[str]) -> int | None:
    """The ranks that the file of `accelerate launch --config_file` asks for; None without one. Raises InputError."""
    for before, word in pairwise(["", *options, ""]):
        name, _, path = before.partition("=")
        if name in ("--config_file", "--config-file"):
            path = path or word
            try:
                content = yaml.safe_load(Path(path).read_text())
                ranks, nodes = count(str(content["num_processes"])), content.get("num_machines", 1)
            except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError) as error:
                raise InputError(f"{path}: expected a configuration of accelerate, with num_processes") from error
            if nodes != 1:
                raise InputError(f"{path}: one node is wrapped at a time; a sweep takes several")
            return ranks
    return None


def count(value: str) -> int | None:
    """The number of ranks that a launcher is asked for; None: one for each GPU. Raises InputError."""
    if value in ("gpu", "auto", "-1"):
        return os.cpu_count() if value == "auto" and not gpus() else None
    if value == "cpu":
        return os.cpu_count()
    if not value.isdigit() or value == "0":
        raise InputError(f"{value or 'nothing'} as the number of ranks; expected 1 or more")
    return int(value)


def gpus() -> int:
    """How many there are here."""
    import torch

    return torch.cuda.device_count()


def as_point(given: Given, timed_steps: int, traced_steps: int) -> Point:
    """The point that runs the command in this folder. Raises InputError."""
    settings = {
        "workload": "command",
        "command": shlex.join(given.words).replace("{", "{{").replace("}", "}}"),
        "launcher": given.launcher,
        "launcher_options": shlex.join(given.options),
        "ranks_per_node": given.ranks or max(1, gpus()),
        "workdir": str(Path.cwd()),
        "timed_steps": timed_steps,
        "traced_steps": traced_steps,
    }
    try:
        return code.with_code(complete(settings))
    except code.CodeError as error:
        raise InputError(str(error)) from error


def name_of(words: Sequence[str]) -> str:
    """A sweep's name, after the module, or the first file, that is run."""
    shown = Path(words[0]).stem
    for word, after in pairwise(["", *words, ""]):
        if word == "-m" or (Path(after).suffix and Path(after).is_file()):
            shown = after if word == "-m" else Path(after).stem
            break
    return re.sub(r"[^a-z0-9_-]", "-", shown.lower()).strip("-_") or "script"


def base_of(point: Point) -> dict[str, Any]:
    """What all points of its sweep have in common."""
    known = defaults("command")
    return {n: v for n, v in point.settings().items() if n != "code" and (n not in known or v != known[n])}


def remedies_of(found: Diagnosis) -> int:
    """How many different remedies the diagnosis has that are settings."""
    kept = [dict(cause.remedy) for cause in found.causes if cause.remedy and cause.share >= NOISE.value]
    return len([remedy for n, remedy in enumerate(kept) if remedy not in kept[:n]])


def reserve(name: str, content: dict[str, Any]) -> tuple[Path, bool]:
    """The file of a sweep with this base, NAME.yaml, or with a number where others have that, and whether it was not
    there and is written now. The content gets its name."""
    for number in itertools.count(1):
        content["name"] = name if number == 1 else f"{name}-{number}"
        path = Path(f"{content['name']}.yaml")
        try:
            with path.open("x") as sink:
                sink.write(text(content))
            return path, True
        except FileExistsError:
            with contextlib.suppress(OSError, ValueError, yaml.YAMLError, TypeError, KeyError):  # somebody's own file
                if yaml.safe_load(path.read_text())["base"] == content["base"]:
                    return path, False
    raise AssertionError


def text(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=110)


def run(command: list[str]) -> int:
    """Run it to its end, and hand on what this process is asked to stop by; its exit status, 130 where it was asked."""
    started: list[subprocess.Popen[bytes]] = []
    asked: list[int] = []

    def hand_on(number: int, _: Any) -> None:
        asked.append(number)
        for process in started:
            process.send_signal(number)

    heard = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {n: signal.signal(n, hand_on) for n in heard}
    try:
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        if asked:  # before it was there to hear it
            started[0].send_signal(asked[0])
        status = started[0].wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 130 if asked and status else status


def wrap(words: Sequence[str], timed_steps: int, traced_steps: int, timeout_s: float) -> int:
    """Run the command, and print its diagnosis; the exit status: 1 where the script failed. Raises InputError."""
    given = take_apart(words)
    is_program = given.launcher == "none" and words[0] != "-m" and not words[0].endswith(".py")
    if is_program and shutil.which(words[0]) is None:
        raise InputError(f"{words[0]}: no such command")
    point = as_point(given, timed_steps, traced_steps)
    content = {"name": "", "base": base_of(point), "include": [{"seed": point.seed}], "remedy_rounds": 1}
    path, is_new = reserve(name_of(given.words), content)
    name = str(content["name"])
    results = Path("results") / name
    folder = results / "points" / point.id
    results.mkdir(parents=True, exist_ok=True)
    listed = results / f"wrapped-{point.id}.json"  # two commands of one script may run at the same time
    write_json(listed, {"name": name, "points": [{"point_id": point.id, "settings": point.settings()}]})
    earlier = measured_record(folder)
    if earlier is not None and earlier.status == "ok" and (ended := earlier.runs.timed.ended_ns):
        when = datetime.datetime.fromtimestamp(ended // 10**9).strftime("%Y-%m-%d %H:%M:%S")
        how = f"measured on {when}, and not again; to measure anew, delete {folder}"
    else:
        how = f"timed{', then traced' if traced_steps else ''}, in {folder}"
    print(f"{shlex.join(words)}\n  {how}", flush=True)
    command = [sys.executable, "-m", "nightsweep.jobs.launch.launch", str(folder), "--sweep", str(listed)]
    status = run([*command, "--timeout-s", str(timeout_s)])
    record = None if status else read_json(folder / "record.json", Record)  # else it is an earlier run's
    if record is None or record.status != "ok":
        print(ending(record) if record else f"{'stopped: ' * (status == 130)}nothing is recorded", file=sys.stderr)
        if record and record.failure and (left := record.failure.tracebacks.first_failed):
            print(f"  {folder / left}", file=sys.stderr)
        if is_new:
            path.unlink(missing_ok=True)
        return status or 1
    found = diagnose(folder)
    print("\n" + screen.screen(found), end="")
    rounds = remedies_of(found)
    has = yaml.safe_load(path.read_text()) if path.exists() else content
    if has == content | {"remedy_rounds": has.get("remedy_rounds")}:  # else it was edited
        path.write_text(text(content | {"remedy_rounds": max(1, rounds)}))
    if rounds:
        print(
            f"\n{path} is the sweep of this run; what its remedies give, each measured, in results/{name}/report.html:"
        )
        print(f"  snakemake remedies -s {ROOT}/Snakefile --profile {ROOT}/profiles/local --configfile {path}")
    else:
        print(f"\n{path} is the sweep of this run; no setting is advised")
    traced = record.runs.traced
    if traced.status == "failed":
        print(harmless(f"the script failed as it was traced: {traced.reason}, {traced.message}"), file=sys.stderr)
    return int(traced.status == "failed")
