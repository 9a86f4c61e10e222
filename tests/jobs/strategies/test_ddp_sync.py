"""How often DDP averages gradients: once a step, and not with every micro-batch."""

import pytest
import torch
import torch.distributed as dist

from nightsweep.jobs.launch.watchdog import hold_port
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.strategies.make import make_trainer
from nightsweep.jobs.telemetry.trace.tracers import Tracer
from nightsweep.jobs.workloads import make as workloads
from tests.jobs.strategies.strategy_run import NANO


@pytest.fixture
def group():
    with hold_port() as held:
        meeting = f"tcp://127.0.0.1:{held.getsockname()[1]}"
        dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
        yield
        dist.destroy_process_group()


def test_gradients_are_averaged_once_a_step(group):
    point = complete(NANO | {"grad_accum": 3})
    work = workloads.build(point)
    trainer = make_trainer(point, work, torch.device("cpu"))
    sent = []

    def hook(_, bucket):
        sent.append(bucket.index())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    trainer.model.register_comm_hook(None, hook)
    batch = {"tokens": torch.randint(0, 256, (2, 16))}
    for _ in range(2):
        sent.clear()
        assert len(trainer.micro_batches([batch] * 3, Tracer(), lambda loss: loss)) == 3
        trainer.step()
    assert sent and len(sent) == len(set(sent))  # each bucket once
