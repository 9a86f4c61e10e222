"""Several processes may train as one rank, as without a process group: the first that has warmed up is watched."""

from __future__ import annotations

import fcntl
from typing import IO

from ..record.folder import RunFolder


class Claim:
    """This process's, kept until it ends."""

    def __init__(self) -> None:
        self.file: IO[str] | None = None

    def is_first(self, run_folder: RunFolder, rank: int) -> bool:
        """Whether no other process that is alive has claimed the rank. One that comes second leaves word."""
        if self.file is None:
            self.file = run_folder.rank_file(rank, "claim").open("w")
        try:  # not flock, which workers that are forked would hold
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            run_folder.rank_file(rank, "second").touch()
            return False
        except OSError:  # a file system without locks
            pass
        return True


def was_contested(run_folder: RunFolder, rank: int) -> bool:
    """Whether another process came second."""
    return run_folder.rank_file(rank, "second").exists()
