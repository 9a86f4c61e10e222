"""The kept runs (tests/data/labelled), as store.py left them: their names, labels, and unpacked folders."""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
from pathlib import Path
from typing import Any

SET = Path(__file__).parents[1] / "data/labelled"
OPENED = {".gz": gzip.decompress, ".xz": lzma.decompress}


def names() -> list[str]:
    return sorted(path.parent.name for path in SET.glob("*/label.json"))


def label(name: str) -> dict[str, Any]:
    """What tests/labelled/runs.py says of the run. Of one whose injection did not do what it should, what its trace
    says; then `intended` has what the label was to be, and `corrected` the reason."""
    return dict(json.loads((SET / name / "label.json").read_text()))


def unpacked(name: str, folder: Path) -> Path:
    """A copy of the run's folder in this one, as the launcher leaves it."""
    return unpack(shutil.copytree(SET / name, folder / name))


def unpack(folder: Path) -> Path:
    """The folder, each .gz and .xz in it replaced by its content."""
    for path in [path for path in folder.rglob("*") if path.suffix in OPENED]:
        path.with_suffix("").write_bytes(OPENED[path.suffix](path.read_bytes()))
        path.unlink()
    return folder
