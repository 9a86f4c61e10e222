"""A rank's hand on the samplers of its node. It needs nothing but Python, for scripts hold samplers still, too."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket

from ..record.folder import RunFolder


class Samplers:
    """Only the node's first rank moves them."""

    def __init__(self, run_folder: RunFolder, local_rank: int) -> None:
        self.run_folder, self.mine, self.running = run_folder, local_rank == 0, True

    def set(self, running: bool) -> None:
        """Let the samplers run, or stop them where they stand. They take up their rhythm again by themselves."""
        if running == self.running:
            return
        self.running = running
        if not self.mine:
            return
        try:
            pids = json.loads(self.run_folder.samplers(socket.gethostname()).read_text())["pids"]
        except (OSError, ValueError, KeyError):
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT if running else signal.SIGSTOP)
