"""A rank of a script that is done waits for the others', but for none that will leave nothing."""

import threading
import time

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from nightsweep.jobs.hook import outcome
from nightsweep.jobs.record.folder import RunFolder


@pytest.fixture
def group():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


def test_who_is_done_waits_for_what_others_will_write_alone(group, tmp_path):
    start, traced = RunFolder(tmp_path / "timed.1"), RunFolder(tmp_path / "traced.1")
    for folder in (start, traced):
        folder.path.mkdir()
    for rank in range(4):
        start.rank_file(rank, "result.json").touch()  # of the timed steps, which came before
    for file in (traced.rank_file(0, "result.json"), start.rank_file(1, "few.json"), start.rank_file(2, "exit.json")):
        file.touch()
    threading.Timer(0.5, traced.rank_file(3, "result.json").touch).start()
    began = time.monotonic()
    outcome.wait_for_outcomes(traced, start)
    assert 0.5 <= time.monotonic() - began < outcome.OTHERS_S / 2
