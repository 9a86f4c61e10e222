"""Checkpoints every so many steps: whole, and of their step, also where they are written beside the next ones."""

import functools
import threading

import pytest
import torch

from nightsweep.jobs.rank.checkpoint import state_of
from tests.jobs.rank.test_accuracy import CPU, loop_of


@pytest.mark.parametrize("strategy", ["ddp_ds", "fsdp2"])
@pytest.mark.parametrize("beside", [False, True])
def test_a_checkpoint_is_of_its_step(alone, tmp_path, monkeypatch, strategy, beside):
    from torch.distributed.checkpoint import FileSystemWriter, load  # which take a second
    from torch.distributed.checkpoint.state_dict import get_state_dict

    may_write, write = threading.Event(), FileSystemWriter.write_data
    if not beside:
        may_write.set()

    def write_when_allowed(*args):
        assert may_write.wait(60)
        return write(*args)

    monkeypatch.setattr(FileSystemWriter, "write_data", write_when_allowed)
    # With two timed steps these are three, and none waits for the disk if it gets here.
    own = loop_of(tmp_path, 1, warmup_steps=1, strategy=strategy, checkpoint_steps=3, checkpoint_async=beside)
    expected = state_of(own.trainer, CPU)
    with torch.no_grad():
        for weight in own.trainer.model.parameters():
            weight.zero_()
            own.trainer.optimizer.state[weight]["exp_avg"].zero_()
    may_write.set()
    own.checkpoints.wait()
    model, optimizer = get_state_dict(own.trainer.model, own.trainer.optimizer)
    load({"model": model, "optimizer": optimizer}, checkpoint_id=own.checkpoints.folder)
    found = state_of(own.trainer, CPU)
    assert_equal = functools.partial(torch.testing.assert_close, rtol=0, atol=0)
    assert_equal(found["model"], expected["model"])
    assert_equal(found["optimizer"], expected["optimizer"])
    own.checkpoints.close()
    assert not own.checkpoints.folder.exists()
