"""What the accounting of Slurm says of the jobs of chunks."""

from datetime import datetime

import pytest

from tests.bench.slurm_scale import Job, most_at_once, seconds


@pytest.mark.parametrize(
    ("text", "expected"), [("00:03.752", 3.752), ("01:02:03", 3723), ("2-00:00:01", 172_801), ("00:00:10", 10)]
)
def test_times_of_sacct(text, expected):
    assert seconds(text) == expected


def test_a_job_that_follows_another_is_not_beside_it():
    spans = [(0, 20), (0, 21), (5, 20), (20, 30)]
    minute = datetime(2026, 1, 1)
    jobs = [Job(minute.replace(second=begin), minute.replace(second=end), 1.0) for begin, end in spans]
    assert most_at_once(jobs) == 3
    assert most_at_once([]) == 0
