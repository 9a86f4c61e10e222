"""Folders that hold what is run by whoever reads it, such as pickles and compiled code: nobody else may write there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MODE = 0o700
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class NotPrivate(Exception):
    """Says in one line which folder others may write to."""


def make(folder: Path) -> None:
    """Make the folder, or the one that is there, this user's alone.

    Raises:
        NotPrivate: where it is somebody else's, or the file system has no permissions.
        OSError: where it cannot be made.
    """
    folder.mkdir(mode=MODE, parents=True, exist_ok=True)
    if folder.stat().st_uid == os.geteuid():
        folder.chmod(MODE)
    check(folder)


def check(folder: Path) -> None:
    """Raise NotPrivate where others may write to the folder, and OSError where there is none."""
    check_owner(folder)
    if folder.stat().st_mode & _OTHERS:
        how = "remove it, or, where you trust them, `chmod go-w` it"
        raise NotPrivate(f"{folder}: others may write to it, and could have code run in your name; {how}")


def check_owner(folder: Path) -> None:
    """Raise NotPrivate where the folder is somebody else's, and OSError where there is none."""
    owner = folder.stat().st_uid
    if owner != os.geteuid():
        raise NotPrivate(f"{folder}: is of user {owner}, who could have code run in your name; remove it")
