"""What is recorded of the software that ran."""

import subprocess

import pytest

from nightsweep.jobs.host import facts


@pytest.mark.parametrize(
    ("changed", "dirty"),
    [
        (None, False),
        ("data/set/README.md", False),
        ("docs/a.md", False),
        ("tests/data/a.xz", False),
        ("tests/labelled/run.py", True),
        ("jobs/data/a.py", True),
    ],
)
def test_a_tree_is_dirty_where_what_runs_was_changed(tmp_path, monkeypatch, changed, dirty):
    for name in ("data/set/README.md", "docs/a.md", "tests/data/a.xz", "tests/labelled/run.py", "jobs/data/a.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("as committed")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "all")):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    if changed:
        (tmp_path / changed).unlink()
    monkeypatch.setattr(facts, "ROOT", tmp_path)
    assert facts.software(None, uses_cuda=False).git_dirty is dirty


def test_a_new_file_is_a_change_and_no_answer_is_none(tmp_path, monkeypatch):
    subprocess.run(("git", "init", "-q"), cwd=tmp_path, check=True)
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "none"], cwd=tmp_path, check=True)
    monkeypatch.setattr(facts, "ROOT", tmp_path)
    (tmp_path / "new.py").touch()
    assert facts.software(None, uses_cuda=False).git_dirty is True
    (tmp_path / ".git/index").write_text("no index")
    assert facts.software(None, uses_cuda=False).git_dirty is None
