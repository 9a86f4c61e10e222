"""Ranks that train each of some points in turn, in one start, by what jobs/rank/worker.py would use: loader,
strategy, steps.

    python -m tests.jobs.strategies.strategy_run OUT STEPS < points.json

Each rank, a process of its own, writes the losses of each point to OUT/rankR.json; `run` starts them.
"""

import dataclasses
import gc
import json
import os
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

from nightsweep.jobs.launch.watchdog import hold_port
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.rank import server

CPU = {"device": "cpu", "optimizer": "sgd", "learning_rate": 0.05, "micro_batch": 2}
NANO = {"workload": "llm", "model": "llama-nano", "seq_len": 16, **CPU}

VIT_LAYERS = 3
"""Of twelve: what a strategy does with a layer it does with each, and DeepSpeed takes seconds for them all."""

KEPT = []
"""Trainers that must not keep the process group from ending although something still refers to them, as in a job."""


def run(folder, ranks, points, steps=3, **environment):
    """Losses by name of the point: of each rank, of each step, of each micro-batch."""
    every = {"ranks_per_node": ranks}
    text = json.dumps({name: complete(every | settings).settings() for name, settings in points.items()})
    port = hold_port()
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.getsockname()[1])}
    command = [sys.executable, "-m", "tests.jobs.strategies.strategy_run", str(folder), str(steps)]
    done = subprocess.run(
        command,
        env=os.environ | shared | {"OMP_NUM_THREADS": "1"} | environment,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    of_ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    return {name: [of_rank[name] for of_rank in of_ranks] for name in points}


def build(point):
    """The workload; of a ViT, the first layers."""
    from nightsweep.jobs.workloads import make as workloads

    work = workloads.build(point)
    return first_layers(work, VIT_LAYERS) if point.model == "vit_s" else work


def first_layers(work, count):
    """The workload with this many layers left."""
    import torch

    decoder = work.model.model if hasattr(work.model, "model") else work.model.vit
    decoder.layers = torch.nn.ModuleList(work.layers[:count])
    return dataclasses.replace(work, layers=work.layers[:count])


def train(point, steps):
    """Losses of each step's micro-batches on this rank; a point may have fewer steps."""
    from nightsweep.jobs.rank.loader import make_loader
    from nightsweep.jobs.rank.worker import pick_device, set_precision
    from nightsweep.jobs.strategies.make import make_trainer
    from nightsweep.jobs.telemetry.trace.tracers import Tracer
    from nightsweep.jobs.workloads import compute

    device = pick_device(point, int(os.environ["LOCAL_RANK"]))
    set_precision(point)
    compute.set_kernels(point)
    work = build(point)
    compute.write_attention_out(point, work)
    batches = fetched(point, work, device, make_loader(point, work.dataset, device))
    trainer = make_trainer(point, work, device)
    found = []
    with compute.attention(point):
        for _ in range(min(steps, point.timed_steps)):
            of_step = (next(batches) for _ in range(point.grad_accum))
            losses = trainer.micro_batches(of_step, Tracer(), lambda loss: loss)
            trainer.step()
            found.append([float(loss) for loss in losses])
    trainer.close()
    if point.cuda_graph:
        KEPT.append(trainer)
    return found


def fetched(point, work, device, loader):
    """A rank's micro-batches as nightsweep.jobs.rank.loop has them."""
    from nightsweep.jobs.rank.feed import Feed
    from nightsweep.jobs.rank.loader import endless
    from nightsweep.jobs.telemetry.trace.tracers import Tracer

    feed = Feed(point, endless(loader), work, device, Tracer())
    while True:
        yield feed.next()


def attempt(point, steps):
    """As `train`; of a rank alone, the error of a point that cannot be trained, so that others can still be."""
    if int(os.environ["WORLD_SIZE"]) > 1:
        return train(point, steps)
    try:
        return train(point, steps)
    except Exception:
        return {"error": traceback.format_exc()[-3000:]}


def rank(number, points, folder, steps):
    import torch.distributed as dist

    from nightsweep.jobs.rank.worker import join_group, pick_device

    gc.disable()  # a start is short, and what libraries make lasts
    warnings.simplefilter("ignore")
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(number)
    join_group(pick_device(next(iter(points.values())), number), stall_s=0)
    found = {name: attempt(point, steps) for name, point in points.items()}
    (folder / f"rank{number}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def main():
    gc.disable()
    import torch.multiprocessing

    points = {name: complete(settings) for name, settings in json.load(sys.stdin).items()}
    start = "spawn"  # a GPU may be looked for when libraries load, and is of no use after a fork
    if next(iter(points.values())).device == "cpu":
        server.preload()
        if any(point.strategy in ("ddp_ds", "zero1", "zero2", "zero3") for point in points.values()):
            import deepspeed  # noqa: F401  # takes seconds, as the others do: once for all ranks

            gc.freeze()
        start = "fork"
    arguments, ranks = (points, Path(sys.argv[1]), int(sys.argv[2])), int(os.environ["WORLD_SIZE"])
    torch.multiprocessing.start_processes(rank, arguments, ranks, start_method=start)


if __name__ == "__main__":
    main()
