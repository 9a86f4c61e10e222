"""What Nightsweep left of its own runs on H200s (tests/data/h200), unpacked."""

import gzip
import shutil

from tests.analysis.readers.test_readers import DATA


def unpacked(name, folder):
    """A copy of tests/data/h200/<name> in this folder, every .gz unpacked."""
    target = folder / name
    shutil.copytree(DATA / "h200" / name, target)
    for path in target.rglob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    return target
