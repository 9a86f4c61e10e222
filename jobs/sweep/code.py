"""What of a user's code makes a point: a hash of the files that a command runs. An edited script is a new point."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

from nightsweep.jobs.point.point import Point

GIT = "git"
"""The `version` that asks git."""


class CodeError(Exception):
    """Code that cannot be found. `setting`: the one that names it."""

    def __init__(self, setting: str, text: str) -> None:
        super().__init__(text)
        self.setting = setting


def with_code(point: Point) -> Point:
    """The point with its setting `code`, where it runs a script: what it was when a point asked for it first, until
    `forget`. The points and the pairs of one sweep so have the same. Raises CodeError."""
    return dataclasses.replace(point, code=_known(Path.cwd(), *_asked(point))) if point.workload == "command" else point


def forget() -> None:
    """A sweep that is read now has what the files hold now."""
    _known.cache_clear()


def fingerprint(point: Point) -> str:
    """Hash of the code that the point's command runs, as it is now, 12 hex digits. Raises CodeError."""
    return _hash(*_asked(point))


def _asked(point: Point) -> tuple[str, str, str, str, str]:
    return str(point.workdir), script(point) or "", str(point.config_file), str(point.files), str(point.version)


def script(point: Point) -> str | None:
    """The word of the command that is a Python script, without its values; None where there is none."""
    return next((word for word in shlex.split(str(point.command)) if word.endswith(".py")), None)


@functools.cache
def _known(_working_folder: Path, *asked: str) -> str:
    return _hash(*asked)


def _hash(workdir: str, script: str, config_file: str, files: str, version: str) -> str:
    folder = Path(workdir)
    if not folder.is_dir():
        raise CodeError("workdir", f"{workdir}: no such folder")
    found = hashlib.sha256(version.encode())
    for path in _files(folder, script, config_file, files):
        found.update(f"\0{path}\0".encode())
        found.update((folder / path).read_bytes())
    if version == GIT:
        found.update(_git(folder, "rev-parse", "HEAD") + _git(folder, "diff", "HEAD"))
    return found.hexdigest()[:12]


def _files(folder: Path, script: str, config_file: str, files: str) -> Iterator[str]:
    """The files that count, as seen from the folder."""
    for setting, name in (("command", script), ("config_file", config_file)):
        if name and "{" not in name:
            if not (folder / name).is_file():
                raise CodeError(setting, f"{folder / name}: no such file")
            yield name
    for pattern in shlex.split(files):
        own = sorted(folder.glob(pattern)) if not Path(pattern).is_absolute() else [Path(pattern)]
        if not any(path.is_file() for path in own):
            raise CodeError("files", f"{pattern}: no such file in {folder}")
        yield from (str(path.relative_to(folder)) for path in own if path.is_file())


def _git(folder: Path, *arguments: str) -> bytes:
    try:
        return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise CodeError("version", f"{folder}: git cannot say which commit it is at") from error
