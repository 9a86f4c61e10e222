"""The GPU sampler on GPUs that tests/fake_nvml.py makes up: rates, logs, what is missing, whose processes, alerts."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from jobs import json_lines
from jobs.look import Look, read_json, write_json
from jobs.telemetry import events, fields, gpm, gpus, log, samplers
from jobs.telemetry.events import Alert, Events, Lows
from jobs.telemetry.sampler import Sampler
from jobs.telemetry.samplers import Samplers, Started
from jobs.telemetry.strangers import Strangers
from tests import fake_nvml
from tests.fake_nvml import gpu

ROOT = Path(__file__).parent.parent
HOST = socket.gethostname()
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
EVERY_TICK = {name for reading in fields.EVERY_TICK for name in reading.names}


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", events.ALERT_VARIABLE, samplers.OFF_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(events, "WAIT_MS", 50)


@pytest.fixture
def nvml(monkeypatch):
    """Gives this process such GPUs; the library that has them."""

    def use(*gpus_):
        module = fake_nvml.load(list(gpus_))
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return module.nvmlLib

    return use


def make_look(folder, hz=10):
    look = Look(folder / "timed.1")
    look.folder.mkdir()
    write_json(look.point_file, {"settings": {"workload": "image", "model": "mobilenet_v2", "nvml_hz": hz}})
    return look


def elsewhere(folder, *gpus_):
    """What other processes need in their environment to find such GPUs."""
    fake_nvml.install(folder)
    return {"PYTHONPATH": f"{folder}:{ROOT}", fake_nvml.VARIABLE: json.dumps(gpus_)}


def start(look, *gpus_, **environment):
    """The sampler as a process of its own."""
    env = {**os.environ, **elsewhere(look.folder.parent, *gpus_), **environment}
    return subprocess.Popen([sys.executable, "-m", "jobs.telemetry.sampler", str(look.folder)], env=env)


def samples(look):
    return look.nvml(HOST).exists() and len(ticks(look, 0)) > 5


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def sampled(look, seconds=0.5, hz=10, meanwhile=lambda sampler: None):
    """Sample in this process; the rows."""
    sampler, stop = Sampler(look, hz, None), threading.Event()
    meanwhile(sampler)
    threading.Timer(seconds, stop.set).start()
    sampler.run(stop)
    return rows(look)


def rows(look, number=None):
    """The rows of the log, or of one GPU."""
    return [
        row
        for batch in log.batches(look.nvml(HOST))
        for row in batch.to_pylist()
        if number is None or row["uuid"] == gpu(number)["uuid"]
    ]


def ticks(look, number):
    """Monotonic times of a GPU's readings at the full rate, s."""
    return [row["mono_ns"] / 1e9 for row in rows(look, number) if row["sm_clock_mhz"] is not None]


def told(look):
    return list(json_lines.read(look.events(HOST))) if look.events(HOST).exists() else []


def at_rate(look, hz, number):
    """Whether the GPU was read at the rate, within 5 %, over three seconds."""
    at = ticks(look, number)
    lengths = [end - begin for begin, end in zip(at, at[3 * hz :], strict=False)]
    return bool(lengths) and min(lengths) == pytest.approx(3, rel=0.05)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Four GPUs whose energy call is slow, for three seconds at least; each look, and how its sampler ended."""
    four = [gpu(number, energy_s=0.02) for number in range(4)]
    looks = {name: make_look(tmp_path_factory.mktemp(name), hz) for name, hz in (("10", 10), ("50", 50), ("kill", 20))}
    running = {name: start(look, *four) for name, look in looks.items()}
    wait_for(lambda: all(map(samples, looks.values())))
    time.sleep(3)
    found, patience = {}, time.monotonic() + 20
    while not all(at_rate(looks[name], int(name), 0) for name in ("10", "50")) and time.monotonic() < patience:
        time.sleep(0.5)  # other tests keep the machine busy
    for name, process in running.items():
        asked, begin = time.time_ns(), time.monotonic()
        process.send_signal(signal.SIGKILL if name == "kill" else signal.SIGTERM)
        code = process.wait(10)
        took = time.monotonic() - begin
        found[name] = {"look": looks[name], "asked_ns": asked, "took_s": took, "code": code}
    return found


@pytest.mark.parametrize("hz", [10, 50])
def test_four_gpus_are_sampled_at_the_rate_although_energy_is_slow(runs, hz):
    look = runs[str(hz)]["look"]
    for number in range(4):
        assert at_rate(look, hz, number)
    assert log.header_of(look.nvml(HOST))["hz"] == hz


def test_rows_are_sparse_each_reading_at_its_own_rate(runs):
    look = runs["50"]["look"]
    kinds = {number: {} for number in range(4)}
    for row in rows(look):
        values = frozenset(name for name in fields.TYPES if row[name] is not None)
        kinds[row["gpu"]].setdefault(values, []).append(row["mono_ns"] / 1e9)
    plain, counted = frozenset(EVERY_TICK), frozenset(gpm.NAMES)
    energy, slow = frozenset({"energy_j"}), frozenset({"ecc_corrected", "ecc_uncorrected", "processes"})
    for found in kinds.values():
        assert set(found) == {plain, counted, energy, slow}
        length = max(found[plain]) - min(found[plain])
        assert len(found[counted]) <= 10 * length + 2
        assert 2 * length - 2 <= len(found[energy]) <= 2 * length + 2
        assert length - 2 <= len(found[slow]) <= length + 2


@pytest.mark.parametrize("name", ["10", "50"])
def test_a_sampler_that_is_told_to_end_does_so_with_a_whole_log(runs, name):
    run = runs[name]
    assert run["code"] == 0 and run["took_s"] < 2
    assert run["look"].nvml(HOST).read_bytes().endswith(END_OF_STREAM)
    assert run["asked_ns"] - rows(run["look"])[-1]["t_ns"] < 0.3e9
    assert read_json(run["look"].live(HOST))["t_ns"] >= run["asked_ns"]


def test_a_killed_sampler_leaves_its_log_up_to_a_second_before(runs):
    run = runs["kill"]
    assert run["code"] == -signal.SIGKILL and not run["look"].nvml(HOST).read_bytes().endswith(END_OF_STREAM)
    assert run["asked_ns"] - max(row["t_ns"] for row in rows(run["look"])) < 1e9
    assert len(ticks(run["look"], 0)) > 50
    for batch in log.batches(run["look"].nvml(HOST)):  # whenever it had been killed
        at = batch.column("t_ns").to_pylist()
        assert max(at) - min(at) < 1e9


def test_a_log_that_breaks_off_is_read_up_to_its_last_whole_batch(runs, tmp_path):
    look, broken = runs["10"]["look"], make_look(tmp_path)
    whole, content = rows(look), look.nvml(HOST).read_bytes()
    sizes = [batch.num_rows for batch in log.batches(look.nvml(HOST))]
    ends = [sum(sizes[:count]) for count in range(len(sizes) + 1)]
    kept = []
    for cut in [*range(0, len(content), 997), len(content) - 9, len(content) - 8]:
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
        "half a header": runs["10"]["look"].nvml(HOST).read_bytes()[:300],
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
    look, period = make_look(tmp_path, 20), 0.05
    started = Started(look, 20)
    first, other = Samplers(look, 0), Samplers(look, 1)
    pids = [process.pid for process in started.processes]
    assert len(pids) == 2 and read_json(look.samplers(HOST)) == {"pids": pids}
    wait_for(lambda: samples(look))
    other.set(False)  # not a node's first rank
    assert psutil.STATUS_STOPPED not in states(pids)
    first.set(False)
    wait_for(lambda: states(pids) == [psutil.STATUS_STOPPED] * 2)
    time.sleep(1)
    first.set(True)
    time.sleep(0.8)
    first.set(False)
    begin = time.monotonic()
    started.end()
    assert time.monotonic() - begin < samplers.END_S
    assert [process.returncode for process in started.processes] == [0, 0]
    at = ticks(look, 1)
    gaps = [after - before for before, after in pairwise(at)]
    assert 1 <= max(gaps) < 1.3
    phases = [(moment - at[0]) / period % 1 for moment in at]
    in_step = [phase for phase in phases if phase < 0.3 or phase > 0.7]
    assert len(in_step) > 0.8 * len(at) and len(at) > 15
    missed = round((at[-1] - at[0]) / period) + 1 - len(at)
    assert missed >= 17
    assert read_json(look.live(HOST))["sampler"]["missed"] == pytest.approx(missed, abs=1)


def states(pids):
    return [psutil.Process(pid).status() for pid in pids]


def test_the_last_rows_are_written_when_the_log_is_closed(tmp_path):
    written = log.Log(tmp_path / "log", {})
    written.add(0, "x", {"energy_j": 1.5})
    written.close()
    assert [batch.to_pylist()[0]["energy_j"] for batch in log.batches(tmp_path / "log")] == [1.5]


def test_the_log_is_ready_before_the_first_row(tmp_path):
    """Arrow imports pandas for its first rows: half a second without samples, were it then."""
    text = (
        "import sys\n"
        "from pathlib import Path\n"
        "from jobs.telemetry.log import Log\n"
        f"log = Log(Path('{tmp_path}/log'), {{}})\n"
        "before = set(sys.modules)\n"
        "log.add(0, 'x', {'energy_j': 1.0})\n"
        "log.flush()\n"
        "raise SystemExit(len(set(sys.modules) - before))\n"
    )
    assert subprocess.run([sys.executable, "-c", text], timeout=20).returncode == 0


def test_the_signal_that_ends_the_sampler_does_not_wait_for_a_lock_that_it_interrupts():
    """As when it comes just while the main thread looks whether it came."""
    text = (
        "import os, signal, threading\n"
        "from jobs.telemetry.sampler import end_on_sigterm\n"
        "stop = threading.Event()\n"
        "end_on_sigterm(stop)\n"
        "with stop._cond:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "raise SystemExit(0 if stop.wait(5) else 1)\n"
    )
    assert subprocess.run([sys.executable, "-c", text], timeout=10).returncode == 0


SPLIT = {"migs": [["MIG-a1", 3], ["MIG-b2", 5]]}


@pytest.mark.parametrize(
    ("named", "wanted"),
    [
        (None, [0, 1, "MIG-a1", "MIG-b2"]),
        ("1", [1]),
        ("1,0", [0, 1]),
        ("GPU-1", [1]),
        (gpu(0)["uuid"], [0]),
        ("2", ["MIG-a1", "MIG-b2"]),
        (gpu(2)["uuid"], ["MIG-a1", "MIG-b2"]),
        ("MIG-b2", ["MIG-b2"]),
        ("0,MIG-a1", [0, "MIG-a1"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_the_job_has_the_gpus_that_cuda_visible_devices_names(nvml, monkeypatch, named, wanted):
    nvml(gpu(0), gpu(1), gpu(2, **SPLIT))
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert [g.uuid for g in gpus.of_job()] == [gpu(w)["uuid"] if isinstance(w, int) else w for w in wanted]
    works, text = gpus.probe()
    assert works == bool(wanted)
    assert text == ("3 GPUs" if wanted else "NVML: none of 3 GPUs is this job's")


@pytest.mark.parametrize("uuid", [gpu(0)["uuid"], "MIG-a1"])
def test_a_uuid_is_made_whole_where_its_prefix_is_left_out(uuid):
    assert gpus.full_uuid(uuid) == uuid
    assert gpus.full_uuid(gpu(0)["uuid"].removeprefix("GPU-")) == gpu(0)["uuid"]


def test_a_gpu_that_cannot_be_reached_does_not_hide_the_others(nvml):
    nvml(gpu(0), gpu(1, errors={"handle": "GPU_IS_LOST"}), gpu(2))
    assert [(g.index, g.uuid) for g in gpus.of_job()] == [(n, gpu(n)["uuid"]) for n in (0, 2)]


def test_a_mig_device_has_its_own_counters_and_nothing_of_the_whole_gpu(nvml, monkeypatch, tmp_path):
    library, look = nvml(gpu(0, **SPLIT)), make_look(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-b2")
    found = sampled(look)
    header = log.header_of(look.nvml(HOST))
    assert header["gpus"] == [{"gpu": 0, "uuid": "MIG-b2", "mig": True}]
    missing = header["missing"]["MIG-b2"]
    assert {name for name, why in missing.items() if why == fields.MIG_REASON} == {
        "power_instant_w", "power_average_w", "energy_j"
    }  # fmt: skip
    assert set(missing) >= {"utilization_percent"} and not set(missing) & {*gpm.NAMES, "memory_used_bytes"}
    assert {row["uuid"] for row in found} == {"MIG-b2"}
    assert all(row[name] is None for row in found for name in missing)
    assert {row["sm_active_percent"] for row in found} == {None, 90.0}
    assert library.calls[0, "instance 5"] and not library.calls[0, "instance 3"]
    assert not library.calls[0, "nvmlGpmSampleGet"] and not library.calls[0, "nvmlDeviceGetTotalEnergyConsumption"]


def test_a_missing_field_is_null_and_the_header_says_why(nvml, tmp_path):
    errors = {
        "NVML_FI_DEV_MEMORY_TEMP": "NOT_SUPPORTED",
        "nvmlDeviceGetTotalEnergyConsumption": "NO_PERMISSION",
        "nvmlDeviceGetComputeRunningProcesses_v3": "NO_PERMISSION",
        "NVML_GPM_METRIC_FP64_UTIL": "NOT_SUPPORTED",
    }
    library, look = nvml(gpu(0, errors=errors), gpu(1)), make_look(tmp_path)
    sampled(look, 1.2)
    missing = log.header_of(look.nvml(HOST))["missing"]
    assert missing[gpu(1)["uuid"]] == {}
    assert missing[gpu(0)["uuid"]] == {
        "memory_temperature_c": "Not Supported",
        "energy_j": "Insufficient Permissions",
        "processes": "Insufficient Permissions",
        "foreign_processes": "Insufficient Permissions",
        "fp64_active_percent": "Not Supported",
    }
    for number, lost in ((0, set(missing[gpu(0)["uuid"]])), (1, {"foreign_processes"})):
        found = rows(look, number)
        assert {name for name in fields.TYPES if all(row[name] is None for row in found)} == lost
    assert [library.calls[0, name] for name in errors] == [1] * 4  # asked once, never again
    assert library.calls[1, "NVML_FI_DEV_MEMORY_TEMP"] > 10
    assert told(look) == []  # they were missing from the beginning


def test_a_field_that_fails_for_a_moment_comes_back(nvml):
    library = nvml(gpu(0, errors={"nvmlDeviceGetTemperature": ["UNKNOWN", 2]}))
    missing = {}
    reader = fields.Reader(gpus.of_job()[0], missing)
    for _ in range(2):
        assert "temperature_c" not in reader.read(*fields.EVERY_TICK)
        assert missing == {"temperature_c": "Unknown Error"}
    assert reader.read(*fields.EVERY_TICK)["temperature_c"] == 55
    assert missing == {} and library.calls[0, "nvmlDeviceGetTemperature"] == 3


def test_counters_that_fail_for_a_moment_come_back_and_reach_over_it(nvml):
    library = nvml(gpu(0))
    clock, reader, missing = counters(library)
    begin = reader.since_ns
    library.gpus[0]["errors"]["nvmlGpmSampleGet"] = ["UNKNOWN", 2]
    for _ in range(2):
        clock[0] += 0.1
        assert reader.read() == {} and missing == dict.fromkeys(gpm.NAMES, "no GPM counters: Unknown Error")
    clock[0] += 0.1
    assert reader.read()["gpm_span_ns"] == reader.since_ns - begin > 0 and missing == {}
    library.gpus[0]["errors"]["nvmlGpmSampleGet"] = "GPU_IS_LOST"
    asked = library.calls[0, "nvmlGpmSampleGet"]
    assert reader.read() == reader.read() == {}
    assert library.calls[0, "nvmlGpmSampleGet"] == asked + 1
    assert missing == dict.fromkeys(gpm.NAMES, "no GPM counters: GPU is lost")


def test_what_is_lost_on_the_way_is_an_event(nvml, tmp_path):
    library, look = nvml(gpu(0), gpu(1)), make_look(tmp_path)

    def lose(_):
        errors = {"nvmlDeviceGetTemperature": "NOT_SUPPORTED", "nvmlDeviceGetUtilizationRates": ["UNKNOWN", 3]}
        threading.Timer(0.2, library.gpus[0]["errors"].update, [errors]).start()
        gone = {"nvmlDeviceGetClockInfo": "GPU_IS_LOST", "nvmlGpmSampleGet": "GPU_IS_LOST"}
        threading.Timer(0.2, library.gpus[1]["errors"].update, [gone]).start()

    found = sampled(look, 1.5, meanwhile=lose)
    assert found[-1]["t_ns"] - max(event["t_ns"] for event in told(look)) > 0.2e9  # not only at the end
    assert [(event["kind"], event["uuid"], event["message"]) for event in told(look)] == [
        ("field_missing", gpu(0)["uuid"], "GPU 0: temperature_c: Not Supported"),
        ("gpu_lost", gpu(1)["uuid"], "GPU 1: GPU is lost"),
    ]
    assert read_json(look.live(HOST))["missing"][gpu(0)["uuid"]] == {"temperature_c": "Not Supported"}


def counters(library):
    """A reader of the first GPU's counters that has seen them move once, and the time that moves them, s."""
    clock, missing = [0.05], {}
    library.now = lambda: clock[0]
    reader = gpm.GpmReader(gpus.of_job()[0], missing)
    clock[0] += 0.1
    assert reader.read() == {}  # not known since when
    return clock, reader, missing


def test_counters_that_did_not_move_are_dropped_and_the_next_reach_back(nvml):
    library = nvml(gpu(0, busy=[[0, 20], [0.4, 80]]))
    clock, reader, missing = counters(library)
    begin, spans, shown = reader.since_ns, [], []
    for moves in (0, 1, 0, 0, 3, 1, 0, 0, 1):
        clock[0] += 0.1 * moves
        before = time.monotonic_ns()
        found = reader.read()
        assert set(found) == (set(gpm.NAMES) if moves else set())
        if moves:
            assert before <= reader.since_ns <= time.monotonic_ns()
            spans.append(found["gpm_span_ns"])
            shown.append(found["sm_active_percent"])
    assert sum(spans) == reader.since_ns - begin
    assert shown == pytest.approx([20, (20 + 20 + 80) / 3, 80, 80]) and missing == {}


def test_spans_of_the_counters_cover_the_time_without_gaps(runs):
    for number in range(4):
        kept = [row for row in rows(runs["50"]["look"], number) if row["gpm_span_ns"] is not None]
        ends = [row["mono_ns"] for row in kept]
        assert ends[-1] - ends[0] > 2.5e9
        assert [after - before for before, after in pairwise(ends)] == [row["gpm_span_ns"] for row in kept[1:]]


def test_counters_are_asked_as_often_as_they_move_and_no_more(nvml, tmp_path):
    library, look = nvml(gpu(0)), make_look(tmp_path)
    sampled(look, 1.0, hz=50)
    assert len(ticks(look, 0)) > 30 and 8 <= library.calls[0, "nvmlGpmSampleGet"] <= 13


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"gpm": False}, "Not Supported"),
        ({"errors": {"nvmlGpmQueryDeviceSupport": "FUNCTION_NOT_FOUND"}}, "Function Not Found"),
    ],
)
def test_a_gpu_without_counters_says_so_for_every_field_of_theirs(nvml, tmp_path, settings, why):
    nvml(gpu(0, **settings))
    look = make_look(tmp_path)
    found = sampled(look)
    assert log.header_of(look.nvml(HOST))["missing"] == {
        gpu(0)["uuid"]: dict.fromkeys(gpm.NAMES, f"no GPM counters: {why}")
    }
    assert len(ticks(look, 0)) > 3 and all(row[name] is None for row in found for name in gpm.NAMES)


@pytest.fixture
def processes():
    """A rank, its child, and somebody else's process."""
    rank = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True)
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield rank.pid, int(rank.stdout.readline()), other.pid
    for process in (rank, other):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    rank.stdout.close()


def watched(look):
    """Readers of the processes on each GPU."""
    strangers = Strangers(look, HOST, Events(look.events(HOST), HOST))
    readers = [fields.Reader(g, {}) for g in gpus.of_job()]
    return lambda: [reader.read(strangers.reading) for reader in readers]


def rank_file(look, rank, pid, host=HOST):
    write_json(look.rank_file(rank, "pid.json"), {"rank": rank, "host": host, "pid": pid})


def test_ranks_and_their_children_are_ours_and_a_stranger_is_told_of_once(nvml, tmp_path, processes):
    rank, child, other = processes
    nvml(gpu(0, pids=[rank, child]), gpu(1, pids=[child, other]), gpu(2))
    look = make_look(tmp_path)
    read = watched(look)
    assert read() == [{"processes": 2}, {"processes": 2}, {"processes": 0}]  # no rank has begun
    rank_file(look, 0, rank)
    rank_file(look, 1, other, host="another")
    for _ in range(3):
        assert [found["foreign_processes"] for found in read()] == [0, 1, 0]
    (event,) = told(look)
    assert (event["kind"], event["gpu"], event["uuid"]) == ("foreign_process", 1, gpu(1)["uuid"])
    assert event["message"] == f"GPU 1: process {other} is not of this job"


def test_ids_of_another_namespace_make_nobody_a_stranger(nvml, tmp_path, processes):
    beyond = int(Path("/proc/sys/kernel/pid_max").read_text())
    nvml(gpu(0, pids=[beyond + 1, beyond + 2]))
    look = make_look(tmp_path)
    rank_file(look, 0, processes[0])
    found = sampled(look, 1.2)
    assert {row["processes"] for row in found} == {None, 2}
    assert {row["foreign_processes"] for row in found} == {None} and told(look) == []


def test_a_gpu_that_does_little_is_told_of_once_an_episode(nvml, tmp_path):
    nvml(gpu(0), gpu(1), gpu(2))
    look = make_look(tmp_path)
    lows, (first, second, silent) = Lows(Alert(5.0, 10.0), Events(look.events(HOST), HOST)), gpus.of_job()
    for now, percent in enumerate([50, *[4] * 9, None, 4, 4, 4, 5, *[0] * 10, 90, *[1] * 30]):
        lows.see(first, percent, float(now))
        lows.see(second, 4 if now % 10 else 6, float(now))
        lows.see(silent, None, float(now))
        # From second 1: told of in the 11th, over in the 14th; from 15 on over in the 25th; from 26 on till the end.
        assert len(told(look)) == (now >= 11) + (now >= 36)
        if now in (11, 36):
            assert lows.seconds(first, now) == 10
    assert {(event["kind"], event["gpu"]) for event in told(look)} == {("low_gpu", 0)}
    assert told(look)[0]["message"] == "GPU 0: under 5 % for 10 s"


def low_s(look):
    """How long each GPU has been low, as `nightsweep watch` is told."""
    live = read_json(look.live(HOST))
    return [shown["low_s"] for shown in live["gpus"]] if live else [0.0]


def test_the_alert_of_the_environment_tells_of_low_gpus_and_runs_its_command(tmp_path):
    look, sink, busy = make_look(tmp_path), tmp_path / "told", tmp_path / "busy"
    write_json(busy, 1)
    no_sm = {"NVML_GPM_METRIC_SM_UTIL": "NOT_SUPPORTED"}
    five = [
        gpu(0, busy=str(busy)),
        gpu(1, busy=[[0, 1]], gpm=False),  # its utilisation is high
        gpu(2, busy=[[0, 0]], gpm=False),
        gpu(3, busy=[[0, 0]], errors=no_sm),
        gpu(4),
    ]
    alert = Alert(below_percent=5, for_s=0.4, command=f'printf "%s\\n" "$NIGHTSWEEP_EVENT" >> {sink}')
    process = start(look, *five, **{events.ALERT_VARIABLE: alert.as_json()})
    wait_for(lambda: len(told(look)) == 3)
    wait_for(lambda: low_s(look)[0] > 0.4)
    write_json(busy, 90)
    wait_for(lambda: low_s(look)[0] == 0)
    write_json(busy, 1)
    wait_for(lambda: len(told(look)) == 4)
    process.terminate()
    assert process.wait(5) == 0
    found = told(look)
    assert sorted(event["gpu"] for event in found) == [0, 0, 2, 3]
    assert {event["kind"] for event in found} == {"low_gpu"}
    ran = [json.loads(line) for line in sink.read_text().splitlines()]
    assert sorted(ran, key=lambda event: event["mono_ns"]) == found
    live = read_json(look.live(HOST))
    assert live["alert"] == {"below_percent": 5, "for_s": 0.4}
    assert [seconds > 0.35 for seconds in low_s(look)] == [True, False, True, True, False]
    assert low_s(look)[4] == 0 and live["gpus"][4]["sm_active_percent"] == 90


def test_xid_errors_are_told_with_their_gpu_even_one_that_is_lost(nvml, monkeypatch, tmp_path):
    library = nvml(gpu(0, xids=[[0, 13]]), gpu(1), gpu(2, xids=[[0, 31]]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    look = make_look(tmp_path)

    def lose():
        library.gpus[2]["errors"]["nvmlDeviceGetUUID"] = "GPU_IS_LOST"
        library.gpus[2]["xids"].append([0, 79])

    sampled(look, meanwhile=lambda _: threading.Timer(0.2, lose).start())
    assert [(event["kind"], event["gpu"], event["uuid"], event["message"]) for event in told(look)] == [
        ("xid", 2, gpu(2)["uuid"], "XID 31"),
        ("xid", 2, gpu(2)["uuid"], "XID 79"),
    ]


def test_an_xid_error_of_a_mig_device_is_that_devices(nvml, tmp_path):
    nvml(gpu(0), gpu(1, **SPLIT, xids=[[0, 31, 5], [0, 48]]))
    look = make_look(tmp_path)
    sampled(look, 0.3)
    assert [(event["gpu"], event["uuid"], event["message"]) for event in told(look)] == [
        (1, "MIG-b2", "XID 31"),
        (1, gpu(1)["uuid"], "XID 48"),
    ]


@pytest.mark.parametrize("call", ["nvmlDeviceGetSupportedEventTypes", "nvmlEventSetCreate"])
def test_a_driver_that_tells_of_no_events_costs_one_line_and_no_samples(nvml, tmp_path, call):
    nvml(gpu(0, errors={call: "NOT_SUPPORTED"}), gpu(1, errors={call: "NOT_SUPPORTED"}))
    look = make_look(tmp_path)
    sampled(look)
    (event,) = told(look)
    assert (event["kind"], event["message"]) == ("field_missing", "XID errors are not told: Not Supported")
    assert len(ticks(look, 1)) > 3


def test_without_nvml_the_host_alone_is_sampled(monkeypatch, tmp_path):
    import pynvml

    def no_library(name):
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)  # also where there is a driver
    monkeypatch.setattr(pynvml, "CDLL", no_library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    assert gpus.probe() == (False, "NVML: NVML Shared Library Not Found")
    assert modules_of(make_look(tmp_path), 10) == ["jobs.telemetry.host"]


def test_samplers_are_those_that_are_asked_for(nvml, monkeypatch, tmp_path):
    nvml(gpu(0))
    look = make_look(tmp_path)
    assert modules_of(look, 0) == ["jobs.telemetry.host"]
    assert modules_of(look, 10) == ["jobs.telemetry.host", "jobs.telemetry.sampler"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert modules_of(look, 10) == ["jobs.telemetry.host"]
    monkeypatch.setenv(samplers.OFF_VARIABLE, "1")
    assert modules_of(look, 10) == []
    assert read_json(look.samplers(HOST)) == {"pids": []}


def modules_of(look, hz):
    started = Started(look, hz)
    started.end()
    return [process.args[2] for process in started.processes]
