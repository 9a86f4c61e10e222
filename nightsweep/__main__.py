"""`python -m nightsweep` is the command `nightsweep`."""

import sys

from nightsweep.analysis.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
