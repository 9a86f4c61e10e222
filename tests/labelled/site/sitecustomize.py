"""Found by Python at its start, where tests/labelled/run.py put this folder on the path: rank processes, and no others,
get their injection."""

import os
import sys

if "NIGHTSWEEP_TEST_INJECTION" in os.environ and sys.orig_argv[1:3] == ["-m", "jobs.worker"]:
    from tests.labelled import inject

    inject.install()
