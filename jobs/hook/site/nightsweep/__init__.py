"""What a script may say to Nightsweep, where Nightsweep would not find its steps by itself:

import nightsweep
for batch in loader:
    ...
    nightsweep.step()

In a script that Nightsweep runs, this module stands for the package `nightsweep`, which need not be installed there.
Where it is, its modules are found all the same: a script may start the command `nightsweep`, or `python -m nightsweep`.
"""

import pathlib
import sys

__path__ = [str(pathlib.Path(__file__).parents[4])]


def step() -> None:
    """A training step has ended, or begins: always at one place of the loop. Without Nightsweep it does nothing."""
    install = sys.modules.get("nightsweep_jobs.hook.install")
    if install is not None and install.WATCH is not None:
        install.WATCH.mark("call")
