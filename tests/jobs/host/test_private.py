"""Folders of pickles and compiled code, which nobody else may write to."""

import os
import stat

import pytest

from nightsweep.jobs.host import private


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
