"""What of an exception's text is the reason."""

import pytest

from nightsweep.jobs.record.failures import reason_of_text

SPAWNED = """

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "spawn.py", line 96, in _wrap
    fn(i, *args)
  File "train.py", line 7, in train
    model.cuda()
"""


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        ("KeyError", "'lr'", ("rank_exception", "KeyError: 'lr'")),
        ("ValueError", "\nbad shard\nof 3", ("rank_exception", "ValueError: bad shard")),
        ("ProcessRaisedException", SPAWNED + "ValueError: bad shard\n",
         ("rank_exception", "ProcessRaisedException: ValueError: bad shard")),
        ("ProcessRaisedException", SPAWNED + "torch.AcceleratorError: CUDA error: out of memory\nCompile with ...\n",
         ("gpu_out_of_memory", "ProcessRaisedException: torch.AcceleratorError: CUDA error: out of memory")),
        ("ProcessRaisedException", "", ("rank_exception", "ProcessRaisedException: ")),
    ],
    ids=["plain", "begins with an empty line", "of a process", "of a process, with a hint after it", "empty"],
)  # fmt: skip
def test_the_line_that_tells(kind, text, found):
    assert reason_of_text(kind, text) == found
