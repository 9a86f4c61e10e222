"""Results on a disk without space: the screen says so, no point gets a false result, the same command goes on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SWEEP = """
name: disk
base: {workload: command, command: job.py, launcher: none, device: cpu, traced_steps: 0}
"""


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("free", [0, 40_000], ids=["none", "enough-to-start"])
def test_full_disk(tmp_path, small_disk, free):
    (tmp_path / "results").symlink_to(small_disk)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    (tmp_path / "job.py").write_text("pass\n")
    filler = small_disk / "filler"
    statistics = os.statvfs(small_disk)
    filler.write_bytes(bytes(statistics.f_bavail * statistics.f_frsize - free))
    command = [str(Path(sys.executable).with_name("snakemake")), "points", "-s", str(ROOT / "Snakefile")]
    command += ["--profile", str(ROOT / "profiles/local"), "--configfile", "sweep.yaml"]

    def run():
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)

    done = run()
    assert done.returncode == 1 and "no space left on the disk" in done.stderr.lower(), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert not list(small_disk.glob("disk/points/*/record.json"))
    filler.unlink()
    done = run()
    assert done.returncode == 0 and "1 of 1 points ok" in done.stderr, done.stderr
