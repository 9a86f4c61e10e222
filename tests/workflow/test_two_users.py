"""A second user of the same machine: what they may read, and that nothing of theirs is run."""

import os
import pickle
import subprocess
import sys

import pytest
from snakemake_executor_plugin_submitit.journal import Journal

from nightsweep.jobs.host.facts import ROOT
from tests.analysis.tools.test_damaged_sweeps import commands, whole  # noqa: F401  # a fixture
from tests.analysis.tools.test_full_disk import contents

NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
READ = "import pathlib, sys; pathlib.Path(sys.argv[1]).read_bytes()"


def run(*words, cwd="/", nobody=True):
    """A program of Python, as the other user."""
    command = [*(AS_NOBODY if nobody else []), sys.executable, *map(str, words)]
    env = {**os.environ, "HOME": str(cwd), "XDG_CACHE_HOME": str(cwd), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=240)


@pytest.fixture
def shared(tmp_path_factory):
    """A folder that both reach; pytest's own are closed to others."""
    if os.geteuid() or run("-c", "import polars").returncode:
        pytest.skip("needs root, and a Python that others may run")
    folder = tmp_path_factory.mktemp("shared")
    before = {path: path.stat().st_mode for path in (folder, *folder.parents) if path.owner() == "root"}
    for path in before:
        path.chmod(path.stat().st_mode | 0o055)
    yield folder
    for path, mode in before.items():
        path.chmod(mode)


def home_of_nobody(folder):
    own = folder / "nobody"
    own.mkdir()
    os.chown(own, NOBODY, NOBODY)
    return own


def snakemake(home, **how):
    words = ["-m", "snakemake", "points", "-s", ROOT / "Snakefile", "--cores", "1", "--configfile", "s.yaml"]
    return run(*words, cwd=home, **how)


def test_jobs_of_one_user_are_closed_to_another(shared):
    before = os.umask(0)
    journal = Journal(shared / "submitit")
    journal.intend("x", ["a"], [0])
    os.umask(before)
    job = journal.folder / "7_0_submitted.pkl"
    job.write_bytes(pickle.dumps("token"))
    job.chmod(0o666)
    for path in (job, journal.folder / "journal.jsonl"):
        assert "PermissionError" in run("-c", READ, path).stderr
    (shared / "open").write_bytes(b"x")
    assert run("-c", READ, shared / "open").returncode == 0  # that nobody gets so far


@pytest.mark.slow
def test_results_of_somebody_else_are_read_and_not_run(shared, whole):  # noqa: F811
    results, own = shared / "results", home_of_nobody(shared)
    subprocess.run(["cp", "-r", whole, results], check=True)
    subprocess.run(["chmod", "-R", "a+rX", results], check=True)
    before = contents(results)
    said = {
        name: run("-m", "nightsweep.analysis.tools.cli", *words, cwd=own) for name, words in commands(results).items()
    }
    assert said["watch"].returncode == 0 and "20/20 points done" in said["watch"].stdout
    for name in ("retry", "orphans"):
        assert said[name].returncode == 2 and len(said[name].stderr.splitlines()) == 1, said[name].stderr
        assert "Permission denied" in said[name].stderr
    (own / "s.yaml").write_bytes((results / "s.yaml").read_bytes())
    (own / "results").symlink_to(results / "results")
    done = snakemake(own)
    assert done.returncode != 0 and f"results/s: is of user {os.geteuid()}" in done.stderr
    assert "Traceback" not in done.stderr and contents(results) == before


@pytest.mark.slow
def test_a_folder_that_somebody_else_has_laid_out_is_not_measured_in(shared, whole):  # noqa: F811
    """Everybody may write to it; its rounds name what is run."""
    home = shared / "home"
    subprocess.run(["cp", "-r", whole, home], check=True)
    subprocess.run(["chmod", "-R", "a+rwX", home / "results"], check=True)
    subprocess.run(["chown", "-R", str(NOBODY), home / "results"], check=True)
    before = contents(home / "results")
    done = snakemake(home, nobody=False)
    assert done.returncode != 0 and f"results/s: is of user {NOBODY}, who could have code run" in done.stderr
    assert "Traceback" not in done.stderr and contents(home / "results") == before
