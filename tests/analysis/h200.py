"""What Nightsweep left of its own runs on H200s (tests/data/h200), unpacked."""

import shutil

from tests.analysis.readers.test_readers import DATA
from tests.labelled.kept import unpack


def unpacked(name, folder):
    """A copy of tests/data/h200/<name> in this folder, every .gz unpacked."""
    return unpack(shutil.copytree(DATA / "h200" / name, folder / name))
