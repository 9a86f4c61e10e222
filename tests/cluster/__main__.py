"""A cluster to try things on: python -m tests.cluster DIR [--nodes N] [--gpus N] [--accounting], until Ctrl-C."""

import argparse
import signal
from contextlib import suppress
from pathlib import Path

from tests.cluster.slurm import Cluster, Shape, available

DEFAULT_SHAPE = Shape()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=DEFAULT_SHAPE.nodes)
    parser.add_argument("--gpus", type=int, default=DEFAULT_SHAPE.gpus)
    parser.add_argument("--accounting", action="store_true")
    options = parser.parse_args()
    if reason := available(options.accounting):
        parser.error(reason)
    # Set for SIGINT too: a shell starts its background commands with that ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    shape = Shape(nodes=options.nodes, gpus=options.gpus, accounting=options.accounting)
    with suppress(KeyboardInterrupt), Cluster(options.folder, shape) as cluster:
        print(f"export SLURM_CONF={cluster.environment['SLURM_CONF']}", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
