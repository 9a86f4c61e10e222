"""Ranks that train each of some points in turn, in one start, by what jobs.worker would use: loader, strategy, steps.

    python -m tests.strategy_run OUT STEPS < points.json

Each rank writes the losses of each point to OUT/rankR.json; `run` starts them.
"""

import gc
import json
import os
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

from jobs.point import complete
from jobs.watch import free_port

CPU = {"device": "cpu", "optimizer": "sgd", "learning_rate": 0.05, "micro_batch": 2}
NANO = {"workload": "llm", "model": "llama-nano", "seq_len": 16, **CPU}


def run(folder, ranks, points, steps=3, **environment):
    """Losses by name of the point: of each rank, of each step, of each micro-batch."""
    every = {"ranks_per_node": ranks}
    text = json.dumps({name: complete(every | settings).settings() for name, settings in points.items()})
    shared = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.strategy_run", str(folder), str(steps)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    for process in processes:
        process.stdin.write(text)
        process.stdin.close()
    told = [process.stdout.read() for process in processes]
    assert not any(process.wait() for process in processes), "\n".join(told)[-6000:]
    of_ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    return {name: [of_rank[name] for of_rank in of_ranks] for name in points}


def train(point, steps):
    """Losses of each step's micro-batches on this rank."""
    from jobs import compute, workloads
    from jobs.data import make_loader
    from jobs.strategies import make_trainer
    from jobs.telemetry.trace import NoTracer
    from jobs.worker import pick_device, set_precision

    device = pick_device(point)
    set_precision(point)
    compute.set_kernels(point)
    work = workloads.build(point)
    compute.write_attention_out(point, work)
    batches = fetched(point, work, device, make_loader(point, work.dataset, device))
    trainer = make_trainer(point, work, device)
    found = []
    with compute.attention(point):
        for _ in range(steps):
            of_step = (next(batches) for _ in range(point.grad_accum))
            losses = trainer.micro_batches(of_step, NoTracer(), lambda loss: loss)
            trainer.step()
            found.append([float(loss) for loss in losses])
    return found


def fetched(point, work, device, loader):
    """A rank's micro-batches as jobs.steps has them."""
    from jobs.data import endless
    from jobs.feed import Feed
    from jobs.telemetry.trace import NoTracer

    feed = Feed(point, endless(loader), work, device, NoTracer())
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


def main():
    gc.disable()  # a start is short, and what libraries make lasts
    warnings.simplefilter("ignore")
    import torch.distributed as dist

    from jobs.worker import join_group, pick_device

    points = {name: complete(settings) for name, settings in json.load(sys.stdin).items()}
    join_group(pick_device(next(iter(points.values()))), stall_s=0)
    found = {name: attempt(point, int(sys.argv[2])) for name, point in points.items()}
    (Path(sys.argv[1]) / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    gc.freeze()


if __name__ == "__main__":
    main()
