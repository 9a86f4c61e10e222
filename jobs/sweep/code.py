"""What of a user's code makes a point: a hash of the files that a command runs. An edited script is a new point."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nightsweep.jobs.point.point import Point

GIT = "git"
"""The `version` that asks git."""
MOST_NAMES = 3
"""Files that a line names."""


class CodeError(Exception):
    """Code that cannot be found. `setting`: the one that names it."""

    def __init__(self, setting: str, text: str) -> None:
        super().__init__(text)
        self.setting = setting


@dataclasses.dataclass(frozen=True)
class Code:
    """What a point's command runs: a hash of all of it, and one of each file, by the file's path."""

    whole: str
    files: Mapping[str, str]


def with_code(point: Point) -> Point:
    """The point with its setting `code`, where it runs a script: what it was when a point asked for it first, until
    `forget`. The points and the pairs of one sweep so have the same. Raises CodeError."""
    if point.workload != "command":
        return point
    return dataclasses.replace(point, code=_known(Path.cwd(), *_asked(point)).whole)


def files_of(points: Iterable[Point]) -> dict[str, str]:
    """The files that make these points' code, as `with_code` found them, with a hash of each."""
    own = [_known(Path.cwd(), *_asked(point)) for point in points if point.workload == "command"]
    return {name: digest for code in own for name, digest in code.files.items()}


def forget() -> None:
    """A sweep that is read now has what the files hold now."""
    _known.cache_clear()


def read(point: Point) -> Code:
    """The code that the point's command runs, as it is now. Raises CodeError."""
    return _read(*_asked(point))


def name_changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Which files have another hash now, in some words; empty where none has, or nothing is known of any."""
    names = sorted(name for name, digest in now.items() if before.get(name, digest) != digest)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _asked(point: Point) -> tuple[str, str, str, str, str]:
    return str(point.workdir), script(point) or "", str(point.config_file), str(point.files), str(point.version)


def script(point: Point) -> str | None:
    """The word of the command that is a Python script, without its values, or the file of the module that follows -m;
    None where there is none."""
    for word, is_module in code_words(shlex.split(str(point.command))):
        if not is_module:
            return word
        for name in (f"{word.replace('.', '/')}{end}" for end in (".py", "/__main__.py")):
            if (Path(str(point.workdir)) / name).is_file():
                return name
    return None


def code_words(words: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """The words of a command that name Python code, and whether each is a module's name, after -m, or a script's file.
    What follows -c is neither."""
    for before, word in itertools.pairwise(["", *words]):
        if before == "-m" or (word.endswith(".py") and before != "-c"):
            yield word, before == "-m"


@functools.cache
def _known(_working_folder: Path, *asked: str) -> Code:
    return _read(*asked)


def _read(workdir: str, script: str, config_file: str, files: str, version: str) -> Code:
    folder, digests = Path(workdir), {}
    if not folder.is_dir():
        raise CodeError("workdir", f"{workdir}: no such folder")
    found = hashlib.sha256(version.encode())
    for path in _files(folder, script, config_file, files):
        found.update(f"\0{path}\0".encode())
        try:
            content = (folder / path).read_bytes()
        except OSError as error:
            setting = {script: "command", config_file: "config_file"}.get(path, "files")
            raise CodeError(setting, f"{folder / path}: cannot be read: {error.strerror}") from error
        found.update(content)
        digests[str(folder / path)] = _digest(hashlib.sha256(content))
    if version == GIT:
        state = _git(folder, "rev-parse", "HEAD") + _git(folder, "diff", "HEAD")
        found.update(state)
        digests[f"the git state of {folder}"] = _digest(hashlib.sha256(state))
    return Code(_digest(found), digests)


def _digest(found: Any) -> str:
    return str(found.hexdigest()[:12])


def _files(folder: Path, script: str, config_file: str, files: str) -> Iterator[str]:
    """The files that count, as seen from the folder."""
    for setting, name in (("command", script), ("config_file", config_file)):
        if name and "{" not in name:
            if not (folder / name).is_file():
                raise CodeError(setting, f"{folder / name}: no such file")
            yield name
    for pattern in shlex.split(files):
        try:
            own = [Path(pattern)] if Path(pattern).is_absolute() else sorted(folder.glob(pattern))
        except ValueError as error:  # such as src/**.py, up to Python 3.12
            raise CodeError("files", f"{pattern}: {error}") from error
        if not any(path.is_file() for path in own):
            raise CodeError("files", f"{pattern}: no such file{'' if Path(pattern).is_absolute() else f' in {folder}'}")
        # An absolute path may be of anywhere.
        yield from (
            str(path.relative_to(folder) if path.is_relative_to(folder) else path) for path in own if path.is_file()
        )


def _git(folder: Path, *arguments: str) -> bytes:
    try:
        return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise CodeError("version", f"{folder}: git cannot say which commit it is at") from error
