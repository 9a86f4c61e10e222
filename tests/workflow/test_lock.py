"""What `make` installs is pinned, and but for torch by the hashes of its files; conda and the image have the same."""

import re

import yaml

from nightsweep.jobs.host.facts import ROOT

ENVS = ROOT / "envs"
MAKEFILE = (ROOT / "Makefile").read_text()
RULE = MAKEFILE.partition("\n.venv/ready:")[2].partition("\n\n")[0]
ENTRY = re.compile(r"^(\S[^\\\n]*) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def test_every_pin_has_hashes_and_conda_has_the_same_in_one_file():
    text = (ENVS / "hashes.lock").read_text()
    pins = [entry[1] for entry in ENTRY.finditer(text)]
    assert len(pins) > 100 and ENTRY.sub("", text) == ""
    (torch,) = re.findall("^TORCH := (.+)$", MAKEFILE, re.MULTILINE)
    _, _, pip = yaml.safe_load((ENVS / "nightsweep.yaml").read_text())["dependencies"]
    assert pip == {"pip": [torch, *pins]}


def test_make_takes_nothing_without_a_hash_but_torch():
    installs = [line for line in RULE.splitlines() if "$(PIP)" in line and not line.endswith("-e .")]
    assert [line for line in installs if "hash" not in line.lower()] == ["\t$(PIP) $(TORCH)"] and len(installs) == 3


def test_the_image_is_what_make_installs_and_has_all_that_it_needs():
    text = (ENVS / "Dockerfile").read_text()
    assert "make .venv/ready" in text and "==" not in text  # no version beside the Makefile's
    (oldest,) = re.findall(r"sys.version_info < \((\d+), (\d+)\)", RULE)
    assert f"FROM python:{'.'.join(oldest)}-" in text
    copied = {name for line in re.findall("^COPY (.+) .+$", text, re.MULTILINE) for name in line.split()}
    assert all((ROOT / name).exists() for name in copied)
    packaged = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packaged | {"Makefile", "README.md", "Snakefile", "envs", "profiles", "pyproject.toml", "workflow"} <= copied
