"""Starts of scripts whose ranks are forked from a process that has imported what they need; CUDA begins in the rank."""

from __future__ import annotations

import argparse
import atexit
import importlib
import os
import runpy
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from nightsweep.jobs.point import plan
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.rank import script
from nightsweep.jobs.rank.server import holds_gpu
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.sweep.order import Order
from tests.labelled.scripts import OWN, ScriptRun

LOADED = (
    "torch", "torch._dynamo", "torch.distributed", "torchvision", "torchmetrics", "lightning", "transformers.trainer",
    "transformers.models.llama.modeling_llama", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.qwen3.modeling_qwen3", "transformers.models.esm.modeling_esm", "accelerate", "timm",
    "torchaudio", "torch_geometric", "gpytorch",
)  # fmt: skip
FIRST_PORT = 29_600


@dataclass
class Start:
    """One start of one side, under way. `cores`: its GPUs' share of the host's. `pids`: by rank."""

    run: ScriptRun
    point: Point
    side: str
    number: int
    folder: RunFolder
    gpus: list[int]
    cores: list[int]
    deadline: float
    pids: dict[int, int] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)


def load(runs: Sequence[ScriptRun]) -> None:
    """Import what these scripts do, but for what begins CUDA, which cannot be forked."""
    own = "".join((OWN / run.command.split()[0]).read_text() for run in runs if run.code == "own")
    used = [name for name in LOADED if name.split(".")[0] in own or any(run.code != "own" for run in runs)]
    sys.modules["torchao"] = None  # type: ignore[assignment]  # it asks the GPU what it can do
    import torch  # noqa: F401

    for name in used:
        pid = os.fork()
        if pid == 0:
            with suppress(ImportError):
                importlib.import_module(name)
            os._exit(holds_gpu())
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            print(f"{name} begins CUDA: each rank imports it", flush=True)
            continue
        with suppress(ImportError):
            importlib.import_module(name)


def begin(run: ScriptRun, side: str, number: int, gpus: list[int], args: argparse.Namespace) -> Start:
    """Fork the ranks."""
    point = run.point(side, args.peers, args.images)
    traced = side == "slow" and number == 0 and "tried" not in args.sides and point.traced_steps > 0
    folder = RunFolder((args.out / "runs" / run.name / f"{side}-{number}" / "timed").absolute())
    shutil.rmtree(folder.path.parent, ignore_errors=True)
    folder.path.mkdir(parents=True)
    Order(
        settings=point.settings(),
        tracer="kineto" if traced else "none",
        traced_ranks=list(range(run.ranks)) if traced else [],
        blocks=plan.timed_blocks(point if traced else replace(point, traced_steps=0)),
        samplers=False,
        stall_s=args.limit_s,
    ).write(folder)
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // max(1, args.gpus)
    own = [core for gpu in gpus for core in cores[gpu * share : (gpu + 1) * share]]
    start = Start(run, point, side, number, folder, gpus, own or cores, time.monotonic() + args.limit_s)
    port = FIRST_PORT + (os.getpid() + hash((run.name, side, number)) % 997) % 2000
    for rank in range(run.ranks):
        pid = os.fork()
        if pid == 0:
            become(start, rank, port)
        start.pids[rank] = pid
    return start


def become(start: Start, rank: int, port: int) -> None:
    """In the forked process: be the rank, to its end."""
    code = 1
    try:
        os.setsid()
        log = os.open(start.folder.rank_file(rank, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.sched_setaffinity(0, start.cores)
        given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": start.run.ranks, "LOCAL_WORLD_SIZE": start.run.ranks}
        given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        if start.run.ranks == 1 and start.point.launcher == "none":
            given = {}
        os.environ |= {name: str(value) for name, value in given.items()}
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, start.gpus))
        os.environ.setdefault("LOCAL_RANK", str(rank))
        prepared = script.prepare(start.folder, start.point, rank)
        if not given:
            prepared.environment.pop("LOCAL_RANK", None)
            os.environ.pop("LOCAL_RANK", None)
        os.environ |= prepared.environment
        os.chdir(prepared.workdir)
        place = prepared.command.index("-u") + 1
        sys.argv = prepared.command[place:]
        sys.path.insert(0, str(prepared.workdir.absolute()))
        for name in [name for name in sys.modules if name.split(".")[0] in ("nightsweep_jobs", "sitecustomize")]:
            del sys.modules[name]
        runpy.run_path(str(script.SITE / "sitecustomize.py"))
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        except BaseException:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def is_over(start: Start) -> bool:
    """Whether all ranks have ended; those of a start that failed or takes too long are ended now."""
    for rank, pid in start.pids.items():
        if rank not in start.codes:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                start.codes[rank] = os.waitstatus_to_exitcode(status)
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # loader workers
    late = time.monotonic() > start.deadline
    if late or any(start.codes.values()):
        for rank, pid in start.pids.items():
            if rank not in start.codes:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                start.codes[rank] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) or -9
    return len(start.codes) == len(start.pids)
