"""Found by Python at its start, where tests/labelled/run.py put this folder on the path. For rank processes alone:
they get their injection, and wait for their GPU."""

import os
import sys

if sys.orig_argv[1:3] == ["-m", "nightsweep.jobs.rank.worker"]:
    from pathlib import Path

    from tests.labelled import ahead

    ahead.wait(Path(sys.orig_argv[3]))
    if "NIGHTSWEEP_TEST_INJECTION" in os.environ:
        from tests.labelled import inject

        inject.install()
