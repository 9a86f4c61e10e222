"""One rank of one run: process group, workload, strategy, step loop. Started by jobs/rank/supervisor.py:

    RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \\
        python -m nightsweep.jobs.rank.worker POINT/timed

Read `run` top to bottom; the step loop is in jobs/rank/loop.py.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import resource
import signal
import socket
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

from msgspec import structs

from nightsweep.jobs.hook.imports import after_import
from nightsweep.jobs.host import numa
from nightsweep.jobs.host.gpus import full_uuid
from nightsweep.jobs.host.hidden_modules import UNUSED, hidden
from nightsweep.jobs.host.processes import die_with_parent
from nightsweep.jobs.host.unsupported import Unsupported
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.rank import loader_server
from nightsweep.jobs.record.failures import reason_of
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.heartbeat import Heartbeat, place
from nightsweep.jobs.record.json_files import write_json
from nightsweep.jobs.record.launch_files import Flops, RankError, RankResult
from nightsweep.jobs.sweep.order import Order, read_order

LOOPBACK = "127.0.0.1"


def pick_device(point: Point, local_rank: int) -> Any:
    """This rank's device, as the point asks; raises Unsupported where the host cannot give it."""
    import torch

    cuda = torch.cuda.is_available() and torch.cuda.device_count() > 0
    if point.device == "cuda" and not cuda:
        raise Unsupported("the point asks for device cuda and there is no GPU here")
    if point.device == "auto" and not cuda and os.environ.get("SLURM_GPUS_ON_NODE", "0") not in ("", "0"):
        expected = "a build that fits the driver was expected, or device cpu"
        raise Unsupported(f"Slurm gave the job GPUs, and torch {torch.__version__} does not see them; {expected}")
    if point.device == "cpu" or not cuda:
        if point.precision == "tf32":
            raise Unsupported("tf32 needs a GPU of compute capability 8.0 or later; this rank has a CPU")
        if {point.nccl_transport, point.nccl_algo, point.nccl_proto} != {"auto"} or point.nccl_ctas:
            raise Unsupported("settings of NCCL need GPUs; this rank has a CPU")
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise Unsupported(f"local rank {local_rank} has no GPU of its own: {torch.cuda.device_count()} here")
    torch.cuda.set_device(local_rank)
    if point.precision in ("tf32", "bf16") and torch.cuda.get_device_capability()[0] < 8:
        raise Unsupported(f"{point.precision} needs compute capability 8.0 or later")
    return torch.device("cuda", local_rank)


def set_precision(point: Point) -> None:
    """TF32 for convolutions and products alike, or for neither."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = point.precision == "tf32"


def local_store(timeout: timedelta) -> Any:
    """The store in which ranks of one host meet. PyTorch's own, made from the environment, takes connections from
    anywhere."""
    import torch.distributed as dist

    port, ranks, is_first = int(os.environ["MASTER_PORT"]), int(os.environ["WORLD_SIZE"]), os.environ["RANK"] == "0"
    opened = socket.create_server((LOOPBACK, port)).detach() if is_first else None
    return dist.TCPStore(  # type: ignore[attr-defined]
        LOOPBACK, port, ranks, is_first, timeout, wait_for_workers=False, master_listen_fd=opened
    )


def join_group(device: Any, stall_s: float) -> None:
    """Meet the other ranks; on one host through its loopback interface, where no other host is heard. NCCL's own
    connections begin with a random number that ranks have from the store."""
    import torch.distributed as dist

    # longer than the launcher's own limit, which asks all ranks where they stand; this one blames whoever waits
    timeout = timedelta(seconds=stall_s + 120)
    store = None
    if os.environ["MASTER_ADDR"] == LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = local_store(timeout)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        timeout=timeout,
        world_size=int(os.environ["WORLD_SIZE"]),
        rank=int(os.environ["RANK"]),
        store=store,
        device_id=device if device.type == "cuda" else None,
    )


def uuid(device: Any, point: Point) -> str | None:
    """UUID, as NVML writes it, of the GPU (or MIG device) whose energy is the rank's; null where there is none: on a
    CPU, with tenants on the same GPU, and of dp, whose one rank has several GPUs."""
    import torch

    if device.type != "cuda" or point.tenants > 1 or (point.strategy == "dp" and point.ranks_per_node > 1):
        return None
    return full_uuid(str(torch.cuda.get_device_properties(device).uuid))


def bind_cpus(point: Point, local_rank: int) -> list[int]:
    """Bind the rank to its CPUs; on the CPU it keeps those that it was given. Returns them."""
    if point.device == "cpu":
        return sorted(os.sched_getaffinity(0))
    return numa.bind(local_rank, point.numa, point.ranks_per_node // point.processes_per_node)


def count_flops(point: Point, heart: Heartbeat) -> Flops:
    """Those of one optimizer step, counted once a configuration, as a separate phase."""
    from nightsweep.jobs.rank import flops_cache

    heart.enter("flops")
    return flops_cache.count(point, heart.pulse)


def run(run_folder: RunFolder, order: Order, rank: int, local_rank: int, heart: Heartbeat) -> None:
    point = order.point()
    # Before any library starts its threads.
    cpus = bind_cpus(point, local_rank)
    if point.loader_workers:
        loader_server.start()
    import torch

    with hidden(*UNUSED):
        importlib.import_module("transformers.modeling_utils")

    from nightsweep.jobs.rank.loader import make_loader
    from nightsweep.jobs.rank.loop import Loop
    from nightsweep.jobs.strategies.make import make_trainer
    from nightsweep.jobs.telemetry.sampler_hold import Samplers
    from nightsweep.jobs.telemetry.trace.tracers import make_tracer
    from nightsweep.jobs.workloads import compile_cache, compute
    from nightsweep.jobs.workloads import make as workloads

    heart.beat("group")
    heart.enter("process_group")
    device = pick_device(point, local_rank)
    set_precision(point)
    compute.set_kernels(point)
    join_group(device, order.stall_s)
    heart.beat("data")
    heart.enter("data")
    workloads.prepare_data(point, heart)
    heart.beat("model")
    heart.enter("model")
    work = workloads.build(point, device)
    compute.write_attention_out(point, work)
    counts = [sum(p.numel() for p in work.model.parameters() if p.requires_grad or all_) for all_ in (True, False)]
    loader = make_loader(point, work.dataset, device)
    trainer = make_trainer(point, work, device)
    heart.beat("steps")
    traced = order.tracer if rank in order.traced_ranks else "none"
    tracer = make_tracer(traced, run_folder, rank, deep=point.trace_preset == "deep")
    samplers = Samplers(run_folder, local_rank)
    gc.collect()  # from here on all that lasts counts as old
    gc.enable()
    loop = Loop(point, work, trainer, loader, device, tracer, run_folder, rank, heart, samplers)
    cuda = device.type == "cuda"
    known = RankResult(
        rank=rank,
        host=socket.gethostname(),
        device="cuda" if cuda else "cpu",
        device_name=torch.cuda.get_device_name(device) if cuda else None,
        uuid=uuid(device, point),
        cpus=cpus,
        parameters=counts[0],
        trainable_parameters=counts[1],
        steps_per_epoch=max(1, len(loader) // point.grad_accum),
    )
    for folder, blocks in order.runs(run_folder):
        folder.path.mkdir(exist_ok=True)
        with compute.attention(point):
            window, peaks = loop.run(folder, blocks)
            if folder.kind == "timed" and point.epochs:
                from nightsweep.jobs.rank import epochs

                heart.enter("epochs")
                epochs.run(loop)
        heart.enter("results")
        result = structs.replace(
            known,
            peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            window=window,
            **peaks,
            **work.facts(),
            **compile_cache.counts(),
            # After the steps, when nothing is left to disturb: the peak of the process's memory has been read.
            flops=count_flops(point, heart) if folder.kind == "timed" else None,
        )
        # Before the traced run begins: the timed one stands, whatever becomes of the rank.
        write_json(folder.rank_file(rank, "result.json"), result)
    heart.beat("end")
    heart.enter("teardown")
    loop.checkpoints.close()
    trainer.close()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main() -> int:
    # Until the step loop, and at the end: what libraries make when they load lasts, and to look through it over and
    # over, or to take it apart object by object, takes seconds.
    gc.disable()
    die_with_parent()
    run_folder, rank = RunFolder(Path(sys.argv[1])), int(os.environ["RANK"])
    heart = Heartbeat(run_folder.rank_file(rank, "heartbeat"))
    heart.enter("import")
    after_import({"torch._dynamo.callback": heart.follow_compiler})
    with run_folder.rank_file(rank, "stacks.txt").open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        try:
            run(run_folder, read_order(run_folder), rank, int(os.environ["LOCAL_RANK"]), heart)
        except Exception as error:
            run_folder.rank_file(rank, "traceback.txt").write_text(traceback.format_exc())
            reason, message = reason_of(error)
            step = getattr(error, "step", None)
            what = RankError(reason=reason, message=message, phase=place(run_folder, rank), step=step)
            write_json(run_folder.rank_file(rank, "error.json"), what)
            traceback.print_exc()
            sys.stderr.flush()
            # no orderly end: its destructors could wait for ranks that wait for this one
            os._exit(1)
    print(f"rank {rank} is done", flush=True)
    gc.freeze()
    return 0


if __name__ == "__main__":
    sys.exit(main())
