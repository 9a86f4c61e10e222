"""Where compiled code is kept, and that a second process finds it there."""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.workloads import compile_cache
from nightsweep.jobs.workloads.compile_cache import INDUCTOR, TRITON

POINT = {"workload": "llm", "model": "llama-nano", "device": "cpu", "compile": "default"}
SCRIPT = f"""
import json, os, torch, torch._inductor.compile_fx
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.workloads import compile_cache, compute

def begin():
    if pid := os.fork():
        return pid
    compute.set_kernels(complete({POINT!r}))
    before = compile_cache.counts()
    torch.compile(lambda x: x @ x)(torch.ones(4, 4))  # no code for a C++ compiler, which would take seconds
    os.write(1, (json.dumps([before, compile_cache.counts()]) + "\\n").encode())
    os._exit(0)

for processes in (2, 1):
    for pid in [begin() for _ in range(processes)]:
        assert os.waitpid(pid, 0)[1] == 0
"""
"""Two processes at once, and then a third, all with what takes seconds to import."""


@pytest.fixture
def variables(tmp_path, monkeypatch):
    """The environment of this process, with a cache folder of its own and nothing about torch's."""
    kept = {name: value for name, value in os.environ.items() if name not in (INDUCTOR, TRITON)}
    monkeypatch.setattr(os, "environ", kept | {"XDG_CACHE_HOME": str(tmp_path)})
    return os.environ


def test_a_rank_that_compiles_keeps_it_in_the_cache_folder(tmp_path, variables):
    compile_cache.use(complete(POINT | {"compile": "none"}))
    assert INDUCTOR not in variables
    # torch names this one itself when some of its modules are imported
    variables[INDUCTOR] = f"{tempfile.gettempdir()}/torchinductor_somebody"
    compile_cache.use(complete(POINT))
    folder = Path(variables[INDUCTOR])
    assert folder.parent == tmp_path / "nightsweep/compile" and folder.is_dir()
    assert folder.name.startswith("torch-2.") and "/" not in folder.name
    assert variables[TRITON] == f"{folder}/triton"


def test_folders_of_the_users_are_left_alone(variables):
    variables[TRITON] = "/theirs/triton"
    compile_cache.use(complete(POINT))
    assert variables[TRITON] == "/theirs/triton"
    del variables[TRITON]
    variables[INDUCTOR] = "/theirs/inductor"
    compile_cache.use(complete(POINT))
    assert variables[INDUCTOR] == "/theirs/inductor" and TRITON not in variables


def test_without_a_folder_that_locks_each_process_has_one_that_nobody_else_can_make(tmp_path, variables, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", refuse)
        compile_cache.use(complete(POINT))
    first = Path(variables.pop(INDUCTOR))
    (tmp_path / "file").write_text("")
    variables["XDG_CACHE_HOME"] = str(tmp_path / "file")
    compile_cache.use(complete(POINT))
    second = Path(variables[INDUCTOR])
    for folder in (first, second):
        assert folder.stat().st_mode & 0o777 == 0o700 and not compile_cache.is_default(str(folder))
    assert first != second and variables[TRITON] == str(first / "triton")


def test_a_folder_that_others_could_have_filled_is_not_used(tmp_path, variables):
    compile_cache.use(complete(POINT))
    kept = Path(variables.pop(INDUCTOR))
    assert kept.stat().st_mode & 0o777 == 0o700
    if os.geteuid():
        pytest.skip("only root gives a folder to somebody else")
    os.chown(kept, 65534, 65534)
    compile_cache.use(complete(POINT))
    assert Path(variables[INDUCTOR]) != kept and Path(variables[INDUCTOR]).stat().st_uid == 0


@pytest.mark.slow
def test_what_one_process_compiled_another_reads(tmp_path, variables):
    """The first two find nothing, or what the other one has just written; the third finds it."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=dict(variables), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    befores, afters = zip(*map(json.loads, done.stdout.splitlines()), strict=True)
    assert befores == ({}, {}, {})
    found = [(after["compile_cache_hits"], after["compile_cache_misses"]) for after in afters]
    assert sum(found[0]) == sum(found[1]) == 1 and found[2] == (1, 0)
