"""What of a thread's time is waiting, and for what."""

import pytest

from tests.analysis.diagnosis.diagnosed import GEMM, MS, STEP, US, causes, of


def drawing(count, apart, last=0):
    """A step whose loader draws samples on the device and reads each, one after `apart`, and then computes for `last`;
    the model takes the rest of the step."""

    def make(run, start):
        for at in range(start, start + count * apart, apart):
            run.kernel(at + 20 * US, at + 40 * US, GEMM, at + 10 * US)
            run.called("cudaStreamSynchronize", at + 18 * US, at + 45 * US)
        over = start + count * apart + last
        run.range("data", start, over)
        run.kernel(over + 20 * US, start + STEP, GEMM, over + 10 * US)

    return make


def test_a_loader_that_launches_one_sample_after_another_does_not_wait(tmp_path):
    found = causes(of(tmp_path, drawing(40, 100 * US)))
    assert found["host_sync"].share > 0.2 and "loader_wait" not in found


def test_a_loader_that_computes_after_what_it_launched_is_waited_for(tmp_path):
    found = causes(of(tmp_path, drawing(10, 100 * US, last=3 * MS)))
    assert found["loader_wait"].share == pytest.approx(0.3, abs=0.01)
