"""The GPU sampler on made-up GPUs: its rate, its log, how it is held still and ended, which samplers are started."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise

import psutil
import pyarrow as pa
import pytest

from nightsweep.jobs.host import gpus
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import read_json
from nightsweep.jobs.telemetry import host_sampler, samplers
from nightsweep.jobs.telemetry.gpu import fields, gpm, log
from nightsweep.jobs.telemetry.sampler_hold import Samplers
from nightsweep.jobs.telemetry.samplers import Started
from tests.fakes.nvml import gpu
from tests.jobs.telemetry.sampling import (
    HOST,
    elsewhere,
    make_run_folder,
    ordered,
    rows,
    samples,
    start,
    ticks,
    wait_for,
)

pytestmark = pytest.mark.usefixtures("bare")

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
EVERY_TICK = {name for reading in fields.EVERY_TICK for name in reading.names}


def at_rate(run_folder, hz, number):
    """Whether the GPU was read at the rate, within 5 %, over some three seconds. Others may hold a pause of a busy
    machine: readings go missing, or one late by up to two periods begins them and makes them short."""
    at = ticks(run_folder, number)
    lengths = [end - begin for begin, end in zip(at, at[3 * hz :], strict=False)]
    return any(length == pytest.approx(3, rel=0.05) for length in lengths)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Four GPUs whose energy call is slow, for three seconds at least; each folder, and how its sampler ended."""
    four = [gpu(number, energy_s=0.02) for number in range(4)]
    folders = {
        name: make_run_folder(tmp_path_factory.mktemp(name), hz) for name, hz in (("10", 10), ("50", 50), ("kill", 20))
    }
    running = {name: start(run_folder, *four) for name, run_folder in folders.items()}
    wait_for(lambda: all(map(samples, folders.values())))
    time.sleep(3)
    found, patience = {}, time.monotonic() + 60
    while (
        not all(at_rate(folders[n], int(n), of) for n in ("10", "50") for of in range(4))
        and time.monotonic() < patience
    ):
        time.sleep(0.5)  # other tests keep the machine busy
    for name, process in running.items():
        asked, begin = time.time_ns(), time.monotonic()
        process.send_signal(signal.SIGKILL if name == "kill" else signal.SIGTERM)
        code = process.wait(60)
        took = time.monotonic() - begin
        found[name] = {"folder": folders[name], "asked_ns": asked, "took_s": took, "code": code}
    return found


@pytest.mark.parametrize("hz", [10, 50])
def test_four_gpus_are_sampled_at_the_rate_although_energy_is_slow(runs, hz):
    run_folder = runs[str(hz)]["folder"]
    for number in range(4):
        assert at_rate(run_folder, hz, number)
    assert log.header_of(run_folder.nvml(HOST))["hz"] == hz


def test_rows_are_sparse_each_reading_at_its_own_rate(runs):
    run_folder = runs["50"]["folder"]
    kinds = {number: {} for number in range(4)}
    for row in rows(run_folder):
        values = frozenset(name for name in fields.TYPES if row[name] is not None)
        kinds[row["gpu"]].setdefault(values, []).append(row["mono_ns"] / 1e9)
    plain, counted = frozenset(EVERY_TICK), frozenset(gpm.NAMES)
    energy = frozenset({"energy_j"})
    slow = frozenset({"power_limit_w", "ecc_corrected", "ecc_uncorrected", "processes"})
    for found in kinds.values():
        assert set(found) == {plain, counted, energy, slow}
        length = max(found[plain]) - min(found[plain])
        assert len(found[counted]) <= 10 * length + 2
        assert 2 * length - 2 <= len(found[energy]) <= 2 * length + 2
        assert length - 2 <= len(found[slow]) <= length + 2


def test_spans_of_the_counters_cover_the_time_without_gaps(runs):
    for number in range(4):
        kept = [row for row in rows(runs["50"]["folder"], number) if row["gpm_span_ns"] is not None]
        ends = [row["mono_ns"] for row in kept]
        assert ends[-1] - ends[0] > 2.5e9
        assert [after - before for before, after in pairwise(ends)] == [row["gpm_span_ns"] for row in kept[1:]]


@pytest.mark.parametrize("name", ["10", "50"])
def test_a_sampler_that_is_told_to_end_does_so_with_a_whole_log(runs, name):
    run = runs[name]
    assert run["code"] == 0 and run["took_s"] < 2
    assert run["folder"].nvml(HOST).read_bytes().endswith(END_OF_STREAM)
    assert run["asked_ns"] - rows(run["folder"])[-1]["t_ns"] < 0.3e9
    assert read_json(run["folder"].live(HOST), dict)["t_ns"] >= run["asked_ns"]


def test_a_killed_sampler_leaves_its_log_up_to_a_second_before(runs):
    run = runs["kill"]
    assert run["code"] == -signal.SIGKILL and not run["folder"].nvml(HOST).read_bytes().endswith(END_OF_STREAM)
    assert run["asked_ns"] - max(row["t_ns"] for row in rows(run["folder"])) < 1e9
    assert len(ticks(run["folder"], 0)) > 50
    for batch in log.batches(run["folder"].nvml(HOST)):  # whenever it had been killed
        at = batch.column("t_ns").to_pylist()
        # A machine may stand still before the reading that ends a batch: those before it are within the second.
        assert max((t for t in at if max(at) - t > 25e6), default=min(at)) - min(at) < 1e9


def test_a_log_that_breaks_off_is_read_up_to_its_last_whole_batch(runs, tmp_path):
    run_folder, broken = runs["10"]["folder"], make_run_folder(tmp_path)
    whole, content = rows(run_folder), run_folder.nvml(HOST).read_bytes()
    sizes = [batch.num_rows for batch in log.batches(run_folder.nvml(HOST))]
    ends = [sum(sizes[:count]) for count in range(len(sizes) + 1)]
    kept = []
    # Its last eight bytes say that the log ended; without them its rows are whole.
    for cut in [*range(0, len(content) - 9, 997), len(content) - 9, len(content) - 8]:
        broken.nvml(HOST).write_bytes(content[:cut])
        kept.append(len(found := rows(broken)))
        assert found == whole[: kept[-1]]
    assert set(kept) == set(ends) and kept == sorted(kept)
    assert kept[-2:] == ends[-2:]


@pytest.mark.parametrize("what", ["empty", "text", "noise", "half a header", "another stream", "no JSON"])
def test_a_file_that_is_no_log_is_refused_in_one_line(runs, tmp_path, what):
    path = tmp_path / "nvml-x.arrow"
    contents = {
        "empty": b"",
        "text": b'{"t_ns": 1}\n{"t_ns": 2}\n',
        "noise": bytes(range(256)) * 40,
        "half a header": runs["10"]["folder"].nvml(HOST).read_bytes()[:300],
    }
    path.write_bytes(contents.get(what, b""))
    if what in ("another stream", "no JSON"):
        schema = pa.schema([("t_ns", pa.int64())], metadata={log.KEY: b"{"} if what == "no JSON" else None)
        with pa.ipc.new_stream(path, schema) as writer:
            writer.write_batch(pa.record_batch([[1]], schema=schema))
    with pytest.raises(ValueError) as caught:
        log.header_of(path)
    assert str(caught.value).startswith(f"{path}: not an NVML log: ") and "\n" not in str(caught.value)
    if what != "another stream" and what != "no JSON":
        assert list(log.batches(path)) == []


def test_a_sampler_that_was_held_still_takes_up_its_rhythm(tmp_path, nvml, monkeypatch):
    two = [gpu(0), gpu(1)]
    nvml(*two)
    for name, value in elsewhere(tmp_path, *two).items():
        monkeypatch.setenv(name, value)
    run_folder, period = make_run_folder(tmp_path, 10), 0.1
    started = Started(run_folder, ordered(10))
    first, other = Samplers(run_folder, 0), Samplers(run_folder, 1)
    pids = [process.pid for process in started.processes.values()]
    assert len(pids) == 2 and read_json(run_folder.samplers(HOST), dict) == {"pids": pids}
    wait_for(lambda: samples(run_folder))
    other.set(False)  # not a node's first rank
    assert psutil.STATUS_STOPPED not in states(pids)
    begin = time.monotonic()
    first.set(False)
    wait_for(lambda: states(pids) == [psutil.STATUS_STOPPED] * 2)
    time.sleep(1)
    first.set(True)
    held = time.monotonic() - begin  # longer than the sleep where others have the cores
    time.sleep(1.6)
    first.set(False)
    begin = time.monotonic()
    started.end()
    assert time.monotonic() - begin < samplers.END_S
    assert [process.returncode for process in started.processes.values()] == [0, 0]
    at = ticks(run_folder, 1)
    gaps = [after - before for before, after in pairwise(at)]
    assert 1 <= max(gaps) < held + 0.3
    phases = [(moment - at[0]) / period % 1 for moment in at]
    in_step = [phase for phase in phases if phase < 0.3 or phase > 0.7]
    assert len(in_step) > 0.8 * len(at) and len(at) > 15
    missed = round((at[-1] - at[0]) / period) + 1 - len(at)
    assert missed >= 8
    assert read_json(run_folder.live(HOST), dict)["sampler"]["missed"] == pytest.approx(missed, abs=1)


def states(pids):
    return [psutil.Process(pid).status() for pid in pids]


def test_the_last_rows_are_written_when_the_log_is_closed(tmp_path):
    written = log.Log(tmp_path / "log", {})
    written.add(0, "x", {"energy_j": 1.5})
    written.close()
    assert [batch.to_pylist()[0]["energy_j"] for batch in log.batches(tmp_path / "log")] == [1.5]


def test_the_log_is_ready_before_the_first_row(tmp_path):
    """Arrow imports pandas, where there is one, for its first rows: half a second without samples, were it then."""
    text = (
        "import sys\n"
        "from pathlib import Path\n"
        "from nightsweep.jobs.telemetry.gpu.log import Log\n"
        f"log = Log(Path('{tmp_path}/log'), {{}})\n"
        "before = set(sys.modules)\n"
        "log.add(0, 'x', {'energy_j': 1.0})\n"
        "log.flush()\n"
        "raise SystemExit(len(set(sys.modules) - before))\n"
    )
    assert subprocess.run([sys.executable, "-c", text], timeout=60).returncode == 0


def test_the_signal_that_ends_the_sampler_does_not_wait_for_a_lock_that_it_interrupts():
    """As when it comes just while the main thread runs whether it came."""
    text = (
        "import os, signal, threading\n"
        "from nightsweep.jobs.telemetry.gpu.sampler import end_on_sigterm\n"
        "stop = threading.Event()\n"
        "end_on_sigterm(stop)\n"
        "with stop._cond:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "raise SystemExit(0 if stop.wait(5) else 1)\n"
    )
    assert subprocess.run([sys.executable, "-c", text], timeout=60).returncode == 0


def test_without_nvml_the_host_alone_is_sampled(monkeypatch, tmp_path):
    import pynvml

    def no_library(name):
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)  # also where there is a driver
    monkeypatch.setattr(pynvml, "CDLL", no_library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    assert gpus.probe() == (False, "NVML: NVML Shared Library Not Found")
    assert modules_of(make_run_folder(tmp_path), 10) == ["nightsweep.jobs.telemetry.host_sampler"]


def test_the_host_is_sampled_on_when_a_child_has_just_ended(tmp_path, monkeypatch):
    """It is listed, and gone when it is looked at: a compiler's worker, between two calls."""
    run_folder = RunFolder(tmp_path)
    (tmp_path / "rank0.pid.json").write_text(json.dumps({"rank": 0, "host": socket.gethostname(), "pid": os.getpid()}))
    ended = subprocess.Popen(["true"])
    child = psutil.Process(ended.pid)
    ended.wait()
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: [child])
    assert host_sampler.HostReader(run_folder).read().num_processes == 1


def test_samplers_are_those_that_are_asked_for(nvml, monkeypatch, tmp_path):
    nvml(gpu(0))
    run_folder = make_run_folder(tmp_path)
    assert modules_of(run_folder, 0) == ["nightsweep.jobs.telemetry.host_sampler"]
    assert modules_of(run_folder, 10) == [
        "nightsweep.jobs.telemetry.host_sampler",
        "nightsweep.jobs.telemetry.gpu.sampler",
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert modules_of(run_folder, 10) == ["nightsweep.jobs.telemetry.host_sampler"]
    assert modules_of(run_folder, 10, samplers=False) == []
    assert read_json(run_folder.samplers(HOST), dict) == {"pids": []}


def modules_of(run_folder, hz, **more):
    started = Started(run_folder, ordered(hz, **more))
    started.end()
    return list(started.processes)
