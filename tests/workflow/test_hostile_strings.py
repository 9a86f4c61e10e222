"""Values of a sweep, its file's name and its folder full of what a shell would obey: no shell sees them."""

import json
import subprocess
import sys

import pytest
import yaml

from nightsweep.jobs.host.facts import ROOT
from nightsweep.jobs.record.json_files import read_json
from nightsweep.jobs.record.record import Record
from nightsweep.jobs.sweep.sweep import SweepError, load

SCRIPT = """
import json, os, pathlib, sys
seen = {"words": sys.argv[2:], "variable": os.environ["HOSTILE"]}
pathlib.Path(sys.argv[1]).write_text(json.dumps(seen))
"""


def orders(canary):
    """Texts that would touch the canary, or be taken for something else, if anything read them as more than texts."""
    touch = f"touch {canary}"
    return [
        *(f"$({touch})", f"`{touch}`", f"; {touch}", f"&& {touch}", f"| {touch}", f"\n{touch}\n", f"' ; {touch} #"),
        *(f'" ; {touch} #', f"\\'; {touch} #", f"$'\\x3b {touch}'", f"x=$({touch})", f"> {canary}", f"<({touch})"),
        *("--lr", "-rf", "-", "--", "*", "~", "$HOME", "${IFS}", "!!", "%s", "\\", "a\tb", " ", "''", '"'),
        *(
            "{words}",
            "{{a}}",
            "{0}",
            "{log}",
            "{output}",
            "{params.python}",
            "\u202egnp.exe",
            "\u2066x\u2069",
            "\u200b",
            "é",
        ),
    ]


def run(folder, *words):
    command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--cores", "1", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=240)


@pytest.mark.slow
def test_no_shell_sees_a_value_of_a_sweep(tmp_path):
    canary, out = tmp_path / "canary", tmp_path / "seen.json"
    folder = tmp_path / "it's $(touch canary) `touch canary`; \" & {log}"
    folder.mkdir()
    (folder / "write.py").write_text(SCRIPT)
    texts = orders(canary)
    names = [f"a{number}" for number in range(len(texts))]
    words = " ".join(f"{{{name}}}" for name in names)
    base = {
        "workload": "command", "launcher": "none", "device": "cpu", "workdir": ".", "traced_steps": 0,
        "command": f"write.py {out} {words}",
    }  # fmt: skip
    axes = {name: [text] for name, text in zip(names, texts, strict=True)} | {"env.HOSTILE": ["".join(texts)]}
    file = folder / "-$(touch canary); touch canary '.yaml"
    file.write_text(yaml.safe_dump({"name": "h", "base": base, "axes": axes}))
    for dry in (["-n"], []):
        done = run(folder, f"--configfile=./{file.name}", *dry, "--", "points")
        assert done.returncode == 0, done.stderr
        assert out.exists() == (not dry)
    assert json.loads(out.read_text()) == {"words": texts, "variable": "".join(texts)}
    (record,) = (folder / "results/h/points").glob("*/record.json")
    assert read_json(record, Record).status == "ok"
    assert not canary.exists() and not list(folder.rglob("canary"))


@pytest.mark.parametrize("line", ["name: {}", "name: s\npresets: {{{}: {{}}}}", "name: s\nbase: {{fault: {}}}"])
def test_names_and_faults_are_of_a_closed_form(tmp_path, line):
    for text in orders("canary"):
        (tmp_path / "s.yaml").write_text(line.format(json.dumps(text)) + "\n")
        with pytest.raises(SweepError) as refused:
            load(tmp_path / "s.yaml")
        assert refused.value.errors and all(len(error.splitlines()) == 1 for error in refused.value.errors)
