"""Processes that are forked from a node's server."""

import os
import subprocess
import sys

import pytest

from nightsweep.jobs.host.facts import ROOT


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ("sys.stdout.close()", 0),
        ("sys.stdout.close() or sys.exit(3)", 3),
        ("os.dup2(os.open('/dev/full', os.O_WRONLY), 1) and print('x')", 0),
    ],
)
def test_a_fork_that_closes_its_output_ends_as_it_says(last, code):
    """As multiprocessing's tracker of resources does; or cannot write, as on a full disk. It must not go on as its
    parent either."""
    forked = f"c = start.Forked(lambda: {last}); print('ended', c.wait())"
    program = f"import os, sys; from nightsweep.jobs.host import start; {forked}"
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env=buffered, timeout=60
    )
    assert (done.stdout, done.stderr) == (f"ended {code}\n", "")
