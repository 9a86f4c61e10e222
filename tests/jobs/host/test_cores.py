"""How many cores there are for a process."""

import os
import subprocess
import sys

from nightsweep.jobs.host.cores import allowed_cores

RESTRICTED = """
import os
from nightsweep.jobs.host.cores import allowed_cores
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(allowed_cores())
"""


def test_a_process_has_the_cores_that_it_may_use():
    told = subprocess.run([sys.executable, "-c", RESTRICTED], capture_output=True, text=True, check=True).stdout
    assert int(told) == 1 <= allowed_cores() <= os.cpu_count()


def test_without_affinities_all_cores_are_there(monkeypatch):
    """As on macOS."""
    monkeypatch.delattr(os, "sched_getaffinity")
    assert allowed_cores() == os.cpu_count()
