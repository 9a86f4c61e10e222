"""What `make` installs is pinned, and but for torch by the hashes of its files."""

import re

from nightsweep.jobs.host.facts import ROOT

ENVS = ROOT / "envs"
ENTRY = re.compile(r"^(\S[^\\\n]*) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def test_every_pin_has_hashes_and_both_locks_have_the_same():
    text = (ENVS / "hashes.lock").read_text()
    pins = [entry[1] for entry in ENTRY.finditer(text)]
    assert len(pins) > 100 and ENTRY.sub("", text) == ""
    assert "".join(f"{pin}\n" for pin in pins) == (ENVS / "requirements.lock").read_text()


def test_make_takes_nothing_without_a_hash_but_torch():
    recipe = (ROOT / "Makefile").read_text().partition("\n.venv/ready:")[2].partition("\n\n")[0]
    installs = [line for line in recipe.splitlines() if "$(PIP)" in line and not line.endswith("-e .")]
    assert [line for line in installs if "hash" not in line.lower()] == ["\t$(PIP) $(TORCH)"] and len(installs) == 3
