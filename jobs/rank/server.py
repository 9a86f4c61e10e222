"""The process of a node that ranks are forked from, so that what they import is imported once for all starts:

    python -m nightsweep.jobs.rank.server

It has no GPU and no threads; each rank is a separate process, which begins CUDA itself. Every line of its standard
input, which srun hands to the servers of all nodes alike, is a Request. On its standard output it says `ready`, and
`ended NODE` when all ranks of a start on this node have ended. With the end of its input, or on SIGTERM, it ends, once
its ranks have. It ends without `ready` where no rank can be forked from it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from nightsweep.jobs.host import clock, start
from nightsweep.jobs.host.hidden_modules import UNUSED, hidden
from nightsweep.jobs.host.processes import end_with_parent
from nightsweep.jobs.rank.request import Request

MODULES = (
    "torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.profiler",
    "torch.utils.flop_counter", "transformers.modeling_utils", "nightsweep.jobs.rank.supervisor",
    "nightsweep.jobs.rank.worker", "nightsweep.jobs.rank.loop", "nightsweep.jobs.rank.loader",
    "nightsweep.jobs.rank.flops_cache", "nightsweep.jobs.strategies.make", "nightsweep.jobs.telemetry.host_sampler",
    "nightsweep.jobs.telemetry.gpu.sampler", "nightsweep.jobs.telemetry.sampler_hold",
    "nightsweep.jobs.telemetry.trace.tracers", "nightsweep.jobs.workloads.image",
    "nightsweep.jobs.workloads.llm.workload", "transformers.models.mobilenet_v2.modeling_mobilenet_v2",
    "transformers.models.resnet.modeling_resnet", "transformers.models.vit.modeling_vit",
    "transformers.models.llama.modeling_llama", "peft",
)  # fmt: skip
"""What ranks import, but for DeepSpeed and torchao, which begin CUDA."""


def preload() -> str | None:
    """Import what ranks need. Returns why ranks cannot be forked from this process; None where they can."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # else to ask whether there are GPUs begins CUDA
    with hidden(*UNUSED):
        for name in MODULES:
            importlib.import_module(name)
    gc.freeze()  # so that collections in ranks write to no page of this process's
    return "CUDA began while modules were imported" if holds_gpu() else None


def holds_gpu() -> bool:
    """Whether CUDA has begun in this process: nothing else opens this device."""
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # one of them is that of this listing
            if path.readlink().name == "nvidia-uvm":
                return True
    return False


class Server:
    """Starts, signals and reaps the supervisors of one start after the other. `answers`: takes a line for each end."""

    def __init__(self, answers: int) -> None:
        self.answers, self.ranks = answers, list[start.Forked]()
        self.node = int(os.environ.get("SLURM_NODEID", "0"))

    def handle(self, request: Request) -> None:
        if request.folder:
            self.ranks = [self.supervisor(request, local) for local in range(request.ranks)]
        for rank in self.ranks if request.signal else []:
            rank.send_signal(request.signal)

    def supervisor(self, request: Request, local: int) -> start.Forked:
        """A rank's supervisor, forked."""
        number = self.node * request.ranks + local
        given = {**request.environment, "RANK": str(number), "LOCAL_RANK": str(local)}

        def run() -> int:
            from nightsweep.jobs.rank import supervisor

            os.close(self.answers)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the server's has the requests
            os.environ.update(given)
            sys.argv = ["nightsweep.jobs.rank.supervisor", request.folder]
            return supervisor.main()

        return start.Forked(run)

    def reap(self) -> None:
        """Say so where the last rank of a start has ended."""
        if self.ranks and all(rank.poll() is not None for rank in self.ranks):
            self.ranks = []
            self.say(f"ended {self.node}")

    def say(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self.answers, f"{line}\n".encode())

    def send(self, number: int) -> None:
        for rank in self.ranks:
            rank.send_signal(number)


def serve(server: Server, woken: int) -> None:
    """Requests and the ends of ranks, until both are over. `woken`: is written to when a signal comes."""
    waiting, open_ = b"", True
    while open_ or server.ranks:
        ready, _, _ = select.select([woken, *([0] if open_ else [])], [], [])
        if woken in ready and signal.SIGTERM in os.read(woken, 4096):
            server.send(signal.SIGTERM)
            open_ = False
        elif 0 in ready:
            given = os.read(0, 65536)
            *lines, waiting = (waiting + given).split(b"\n")
            for line in lines:
                server.handle(msgspec.json.decode(line, type=Request))
            if not given:
                server.send(signal.SIGTERM)
                open_ = False
        server.reap()


def main() -> int:
    end_with_parent()
    clock.join()
    answers = os.dup(1)
    os.dup2(2, 1)  # what ranks print is the run's log
    server = Server(answers)
    gc.disable()  # what libraries make when they load lasts, and to look through it over and over takes a second
    why = preload()
    gc.enable()
    if why:
        print(f"no rank can be forked: {why}", flush=True)
        return 1
    start.is_preloaded = True
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)

    def note(*_: Any) -> None:
        """The wake-up tells."""

    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, note)
    signal.signal(signal.SIGINT, note)  # a terminal's goes to supervisors as well, and the launcher decides
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    server.say("ready")
    serve(server, woken)
    return 0


if __name__ == "__main__":
    sys.exit(main())
