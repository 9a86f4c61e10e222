"""Found by Python at its start, where tests/gpu_host/equivalence.py put this folder on the path. For rank processes and
the server that they are forked from: new ranks wait until they are let go, and both sides of a pair take turns."""

import os
import sys

module = sys.orig_argv[2] if sys.orig_argv[1:2] == ["-m"] else ""
if module in ("nightsweep.jobs.rank.worker", "nightsweep.jobs.rank.server"):
    from pathlib import Path

    from tests.gpu_host import baton
    from tests.labelled import ahead

    baton.install()
    if module == "nightsweep.jobs.rank.worker" and ahead.GO_VARIABLE in os.environ:
        ahead.wait(Path(sys.orig_argv[3]))
