"""Another workflow that uses this one as a module, with the sweep in its own config."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OUTER = f"""
module nightsweep:
    snakefile: "{ROOT}/workflow/Snakefile"
    config: config["sweep"]

use rule * from nightsweep as sweep_*

rule size:
    input: "results/inner/tables/points.parquet"
    output: "size.txt"
    shell: "wc -c {{input}} > {{output}}"

onstart:
    nightsweep.onstart()

onsuccess:
    nightsweep.onsuccess()
"""
CONFIG = """
sweep:
  name: inner
  base: {workload: command, command: job.py, launcher: none, device: cpu, traced_steps: 0}
"""


@pytest.mark.slow
def test_module_with_a_config_of_its_own(tmp_path):
    (tmp_path / "Snakefile").write_text(OUTER)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "job.py").write_text("pass\n")
    command = [str(Path(sys.executable).with_name("snakemake")), "size", "--configfile", "config.yaml"]
    command += ["--profile", str(ROOT / "profiles/local")]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert "1/1 points done" in done.stderr and "1 of 1 points ok" in done.stderr
    assert "not present" not in done.stderr
    assert (tmp_path / "size.txt").read_text().endswith("results/inner/tables/points.parquet\n")
