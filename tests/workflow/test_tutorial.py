"""docs/tutorial.md is followed from its text alone: its script is saved, then its commands are run in their order."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorial.md").read_text()


@pytest.mark.slow
def test_the_tutorial_finds_tries_and_mends(tmp_path):
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, flags=re.M | re.S)
    (script,) = (text for kind, text in blocks if kind == "python")
    (tmp_path / "train.py").write_text(script)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    said = []
    for commands in (text for kind, text in blocks if kind == "sh"):
        done = subprocess.run(
            ["sh", "-e", "-c", commands],
            cwd=tmp_path,
            env={**os.environ, "NS": str(ROOT), "PATH": path},
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout + done.stderr)
    slow, tried, table, mended = said
    for line in ("idle_data_wait ", "1. loader_wait (data_loading): ", "DataLoader: train.py:36", "{loader_workers: "):
        assert line in slow and line in PAGE
    assert "2 of 2 points ok" in tried and (tmp_path / "results/train/report.html").exists()
    assert re.search(r"loader_workers.*0\.\d+ +┆ 0\.\d+ +┆ helped", table)
    before, after = (
        float(re.search(pattern, text)[1])
        for pattern, text in (
            (r"without a tracer ([\d.]+) ms", slow),
            (r"step ([\d.]+) ms \(median of the timed steps\)", mended),
        )
    )
    assert after < 0.7 * before
