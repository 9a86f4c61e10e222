"""What was recorded on other people's machines for these tests names none of their GPUs."""

import gzip
import lzma
import re
from pathlib import Path

DATA = Path(__file__).parents[2] / "data"
UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
UNPACK = {".gz": gzip.decompress, ".xz": lzma.decompress}


def test_uuids_in_recorded_data_are_made_up():
    found = {
        uuid.decode()
        for path in DATA.rglob("*")
        if path.is_file()
        for uuid in UUID.findall(UNPACK.get(path.suffix, bytes)(path.read_bytes()))
    }
    assert len(found) > 4 and all(uuid.startswith("00000000-0000-") for uuid in found), sorted(found)
