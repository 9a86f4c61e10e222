"""What is recorded of the software that ran."""

import subprocess

import pytest

from nightsweep.jobs.host import facts


@pytest.mark.parametrize(
    ("changed", "dirty"), [(None, False), ("data/set/README.md", False), ("docs/a.md", False), ("jobs/a.py", True)]
)
def test_a_tree_is_dirty_where_what_runs_was_changed(tmp_path, monkeypatch, changed, dirty):
    for name in ("data/set/README.md", "docs/a.md", "jobs/a.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("as committed")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "all")):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    if changed:
        (tmp_path / changed).unlink()
    monkeypatch.setattr(facts, "ROOT", tmp_path)
    assert facts.software(None, uses_cuda=False).git_dirty is dirty
