"""Folders of pickles and compiled code, which nobody else may write to."""

import os
import pickle
import stat

import pytest

from jobs.host import private
from jobs.slurm.executor.journal import Journal


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_folder_is_made_for_one_user_whatever_the_umask(tmp_path, open_umask):
    private.make(tmp_path / "new")
    assert mode(tmp_path / "new") == 0o700
    (tmp_path / "old").mkdir(mode=0o777)
    private.make(tmp_path / "old")
    assert mode(tmp_path / "old") == 0o700


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    for bits in (0o720, 0o702):
        tmp_path.chmod(bits)
        with pytest.raises(private.NotPrivate, match=r"^[^\n]*: others may write to it[^\n]*`chmod go-w` it$"):
            private.check(tmp_path)
    tmp_path.chmod(0o755)
    private.check(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder to somebody else")
def test_a_folder_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 65534, 65534)
    with pytest.raises(private.NotPrivate, match="is of user 65534"):
        private.make(tmp_path / "theirs")


def test_jobs_and_their_results_lie_where_nobody_else_can_put_any(tmp_path, open_umask):
    journal = Journal(tmp_path / "submitit")
    journal.intend("x", ["a"], [0])
    assert mode(tmp_path / "submitit") == mode(journal.folder) == 0o700


def test_a_planted_job_of_an_earlier_driver_is_not_taken_over(tmp_path, open_umask):
    planted = Journal(tmp_path / "submitit")
    planted.intend("x", ["a"], [0])
    planted.accept("x", ["7"])
    folder = planted.folder / "x"
    folder.mkdir()
    (folder / "7_0_result.pkl").write_bytes(pickle.dumps(("success", 0)))
    with pytest.raises(private.NotPrivate, match=r"/x: others may write to it"):
        Journal(tmp_path / "submitit").load_unfinished()
    folder.chmod(0o755)
    assert set(Journal(tmp_path / "submitit").load_unfinished()) == {"a"}
