"""The package as others install it: the wheel, and what it says that it needs, in an environment of its own."""

import gzip
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

import polars as pl
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests/data"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def needed(distribution):
    """Names of all distributions that this one needs, directly or not, without extras that nobody asks for."""
    found, waiting = set(), [(distribution, frozenset())]
    while waiting:
        name, extras = waiting.pop()
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            wanted = any(
                requirement.marker is None or requirement.marker.evaluate({"extra": extra}) for extra in extras | {""}
            )
            if wanted and (key := canonicalize_name(requirement.name)) not in found:
                found.add(key)
                waiting.append((key, frozenset(requirement.extras)))
    return found


def install(folder, *projects):
    """An environment with the wheels of these, and with links to what they need, as it is installed here."""
    subprocess.run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, *projects], check=True)
    made = folder / "env"
    venv.create(made, with_pip=False)
    wheels = folder.glob("*.whl")
    subprocess.run([*PIP, "--python", made, "install", "--no-deps", "--no-index", *wheels], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(made), "platbase": str(made)}))
    for name in set().union(*map(needed_of, site.glob("*.dist-info"))):
        for file in metadata.files(name) or []:
            top, here = site / file.parts[0], Path(str(file.locate()))
            if file.parts[0] not in ("..", "__pycache__") and not top.exists():
                top.symlink_to(here.parents[len(file.parts) - 2] if file.parts[1:] else here)
    return made


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return install(tmp_path_factory.mktemp("wheel"), ROOT)


def needed_of(about):
    """What a wheel's own metadata ask for, with all that this needs; without extras."""
    asked = [Requirement(text) for text in metadata.Distribution.at(about).requires or []]
    names = {canonicalize_name(r.name) for r in asked if r.marker is None or r.marker.evaluate({"extra": ""})}
    return names.union(*map(needed, names))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with traces of two ranks, an nsys export, and a sweep."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "trace.sqlite").write_bytes(gzip.decompress((DATA / "h200-ddp-r0.sqlite.gz").read_bytes()))
    for rank in (0, 1):
        shutil.copy(DATA / f"kineto-h200-ddp-r{rank}.json.gz", folder / f"r{rank}.json.gz")
    shutil.copy(ROOT / "config/demo.yaml", folder)
    (folder / "results/demo/points").mkdir(parents=True)
    return folder


def run(environment, folder, *words):
    return run_in(folder, environment / "bin/nightsweep", *words)


def run_in(folder, *command):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--help"], "diagnose"),
        (["check", "demo.yaml"], "estimate:"),
        (["retry", "demo.yaml"], "points set aside"),
        (["orphans", "demo.yaml"], "0 points of results/demo"),
        (["ingest", "trace.sqlite", "--out", "tables"], ""),
        (["diagnose", "trace.sqlite"], "%"),
        (["diagnose", "r0.json.gz", "r1.json.gz", "--json"], '"causes"'),
        (["compare", "trace.sqlite", "trace.sqlite"], ""),
        (["export", "--to", "perfetto", "trace.sqlite", "--out", "window.json.gz"], ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_commands_of_a_plain_installation(environment, files, words, said):
    done = run(environment, files, *words)
    assert done.returncode == 0 and said in done.stdout, done.stderr


def test_the_python_api_of_a_plain_installation(environment, files):
    code = "import nightsweep; print(nightsweep.diagnose('trace.sqlite').table()['kind'].to_list())"
    done = run_in(files, environment / "bin/python", "-c", code)
    assert done.returncode == 0 and "missing_counters" in done.stdout, done.stderr
    assert next(environment.rglob("nightsweep/py.typed"))


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["doctor"], "workflow"),
        (["export", "trace.sqlite", "--to", "prometheus", "--out", "a.prom"], "export"),
        (["wrap", "python3", "train.py"], "train"),
    ],
)
def test_what_an_extra_brings_is_named(environment, files, words, extra):
    done = run(environment, files, *words)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert f"is not installed; it comes with the extra nightsweep[{extra}]" in line


def test_figures_of_a_data_set(environment, files):
    """Of a few points of the published one."""
    published = ROOT / "data/h200-2026-11-21"
    (files / "set/tables").mkdir(parents=True)
    shutil.copy(published / "manifest.json", files / "set")
    kept = sorted(path.name for path in (published / "points").iterdir())[:4]
    for path in (published / "tables").iterdir():
        pl.read_parquet(path).filter(pl.col("point_id").is_in(kept)).write_parquet(files / "set/tables" / path.name)
    for name in kept:
        shutil.copytree(published / "points" / name, files / "set/points" / name)
    done = run(environment, files, "figures", "set", "--out", "drawn")
    assert done.returncode == 0, done.stderr
    assert (files / "drawn/report.html").stat().st_size > 1e5 and list((files / "drawn").glob("*.png"))
    watched = run(environment, files, "watch", "set", "--once")
    assert watched.returncode == 2 and "no sweep.json" in watched.stderr


@pytest.mark.slow
def test_the_plugins_serve_another_workflow_without_the_package(tmp_path):
    made = install(tmp_path, *(path.parent for path in ROOT.glob("workflow/plugins/*/pyproject.toml")))
    (tmp_path / "Snakefile").write_text('rule a:\n output: "a"\n shell: "touch {output}"\n')
    command = [made / "bin/python", "-m", "snakemake", "--jobs", "1", "--logger", "nightsweep"]
    done = run_in(tmp_path, *command, "--executor", "submitit", "--submitit-cluster", "local")
    assert done.returncode == 0 and "job a ok\n1/1 jobs done" in done.stderr, done.stderr
    assert "No module named 'nightsweep'" in run_in(tmp_path, made / "bin/python", "-c", "import nightsweep").stderr
