"""What the sampler tells of made-up GPUs: losses, strangers' processes, GPUs that do little, XID errors."""

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from nightsweep.jobs.host import gpus
from nightsweep.jobs.record.json_files import read_json, write_json
from nightsweep.jobs.sweep.alert import Alert
from nightsweep.jobs.telemetry.gpu import fields
from nightsweep.jobs.telemetry.gpu.events import Events, Lows
from nightsweep.jobs.telemetry.gpu.strangers import Strangers
from tests.fakes.nvml import gpu
from tests.jobs.telemetry.sampling import HOST, SPLIT, make_run_folder, sampled, start, ticks, told, wait_for

pytestmark = pytest.mark.usefixtures("bare")


def test_what_is_lost_on_the_way_is_an_event(nvml, tmp_path):
    library, run_folder = nvml(gpu(0), gpu(1)), make_run_folder(tmp_path)

    def lose(_):
        errors = {"nvmlDeviceGetTemperature": "NOT_SUPPORTED", "nvmlDeviceGetUtilizationRates": ["UNKNOWN", 3]}
        threading.Timer(0.2, library.gpus[0]["errors"].update, [errors]).start()
        gone = {"nvmlDeviceGetClockInfo": "GPU_IS_LOST", "nvmlGpmSampleGet": "GPU_IS_LOST"}
        threading.Timer(0.2, library.gpus[1]["errors"].update, [gone]).start()

    found = sampled(run_folder, 1.5, meanwhile=lose)
    assert found[-1]["t_ns"] - max(event["t_ns"] for event in told(run_folder)) > 0.2e9  # not only at the end
    assert [(event["kind"], event["uuid"], event["message"]) for event in told(run_folder)] == [
        ("field_missing", gpu(0)["uuid"], "GPU 0: temperature_c: Not Supported"),
        ("gpu_lost", gpu(1)["uuid"], "GPU 1: GPU is lost"),
    ]
    assert read_json(run_folder.live(HOST), dict)["missing"][gpu(0)["uuid"]] == {"temperature_c": "Not Supported"}


def test_a_thread_that_an_error_ends_is_an_event_and_the_others_read_on(nvml, tmp_path):
    nvml(gpu(0))
    run_folder = make_run_folder(tmp_path)

    def harm(sampler):
        sampler.every_second = (None,)

    found = sampled(run_folder, 0.5, meanwhile=harm)
    (event,) = told(run_folder)
    assert event["kind"] == "sampler_lost"
    assert event["message"].startswith("energy, limits, errors, processes are no longer read: AttributeError: ")
    assert found[-1]["t_ns"] > event["t_ns"]


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


def watched(run_folder):
    """Readers of the processes on each GPU."""
    strangers = Strangers(run_folder, HOST, Events(run_folder.events(HOST), HOST))
    readers = [fields.Reader(g, {}) for g in gpus.job_gpus()]
    return lambda: [reader.read(strangers.reading) for reader in readers]


def rank_file(run_folder, rank, pid, host=HOST):
    write_json(run_folder.rank_file(rank, "pid.json"), {"rank": rank, "host": host, "pid": pid})


def test_ranks_and_their_children_are_ours_and_a_stranger_is_told_of_once(nvml, tmp_path, processes):
    rank, child, other = processes
    nvml(gpu(0, pids=[rank, child]), gpu(1, pids=[child, other]), gpu(2))
    run_folder = make_run_folder(tmp_path)
    read = watched(run_folder)
    assert read() == [{"processes": 2}, {"processes": 2}, {"processes": 0}]  # no rank has begun
    rank_file(run_folder, 0, rank)
    rank_file(run_folder, 1, other, host="another")
    for _ in range(3):
        assert [found["foreign_processes"] for found in read()] == [0, 1, 0]
    (event,) = told(run_folder)
    assert (event["kind"], event["gpu"], event["uuid"]) == ("foreign_process", 1, gpu(1)["uuid"])
    assert event["message"] == f"GPU 1: process {other} is not of this job"


def test_ids_of_another_namespace_make_nobody_a_stranger(nvml, tmp_path, processes):
    beyond = int(Path("/proc/sys/kernel/pid_max").read_text())
    nvml(gpu(0, pids=[beyond + 1, beyond + 2]))
    run_folder = make_run_folder(tmp_path)
    rank_file(run_folder, 0, processes[0])
    found = sampled(run_folder, 1.2)
    assert {row["processes"] for row in found} == {None, 2}
    assert {row["foreign_processes"] for row in found} == {None} and told(run_folder) == []


def test_a_gpu_that_does_little_is_told_of_once_an_episode(nvml, tmp_path):
    nvml(gpu(0), gpu(1), gpu(2))
    run_folder = make_run_folder(tmp_path)
    lows, (first, second, silent) = Lows(Alert(5.0, 10.0), Events(run_folder.events(HOST), HOST)), gpus.job_gpus()
    for now, percent in enumerate([50, *[4] * 9, None, 4, 4, 4, 5, *[0] * 10, 90, *[1] * 30]):
        lows.see(first, percent, float(now))
        lows.see(second, 4 if now % 10 else 6, float(now))
        lows.see(silent, None, float(now))
        # From second 1: told of in the 11th, over in the 14th; from 15 on over in the 25th; from 26 on till the end.
        assert len(told(run_folder)) == (now >= 11) + (now >= 36)
        if now in (11, 36):
            assert lows.seconds(first, now) == 10
    assert {(event["kind"], event["gpu"]) for event in told(run_folder)} == {("low_gpu", 0)}
    assert told(run_folder)[0]["message"] == "GPU 0: under 5 % for 10 s"


def low_s(run_folder):
    """How long each GPU has been low, as `nightsweep watch` is told."""
    live = read_json(run_folder.live(HOST), dict)
    return [shown["low_s"] for shown in live["gpus"]] if live else [0.0]


def test_the_alert_of_the_order_tells_of_low_gpus_and_runs_its_command(tmp_path):
    sink, busy = tmp_path / "told", tmp_path / "busy"
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
    run_folder = make_run_folder(tmp_path, alert=alert)
    process = start(run_folder, *five)
    wait_for(lambda: len(told(run_folder)) == 3)
    wait_for(lambda: low_s(run_folder)[0] > 0.4)
    write_json(busy, 90)
    wait_for(lambda: low_s(run_folder)[0] == 0)
    write_json(busy, 1)
    wait_for(lambda: len(told(run_folder)) == 4)
    wait_for(lambda: len(sink.read_text().splitlines()) == 4)  # the sampler does not wait for its commands
    process.terminate()
    assert process.wait(60) == 0
    found = told(run_folder)
    assert sorted(event["gpu"] for event in found) == [0, 0, 2, 3]
    assert {event["kind"] for event in found} == {"low_gpu"}
    ran = [json.loads(line) for line in sink.read_text().splitlines()]
    assert sorted(ran, key=lambda event: event["mono_ns"]) == found
    live = read_json(run_folder.live(HOST), dict)
    assert live["alert"] == {"below_percent": 5, "for_s": 0.4}
    assert [seconds > 0.35 for seconds in low_s(run_folder)] == [True, False, True, True, False]
    assert low_s(run_folder)[4] == 0 and live["gpus"][4]["sm_active_percent"] == 90


def test_xid_errors_are_told_with_their_gpu_even_one_that_is_lost(nvml, monkeypatch, tmp_path):
    library = nvml(gpu(0, xids=[[0, 13]]), gpu(1), gpu(2, xids=[[0, 31]]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    run_folder = make_run_folder(tmp_path)

    def lose():
        library.gpus[2]["errors"]["nvmlDeviceGetUUID"] = "GPU_IS_LOST"
        library.gpus[2]["xids"].append([0, 79])

    sampled(run_folder, meanwhile=lambda _: threading.Timer(0.2, lose).start())
    assert [(event["kind"], event["gpu"], event["uuid"], event["message"]) for event in told(run_folder)] == [
        ("xid", 2, gpu(2)["uuid"], "XID 31"),
        ("xid", 2, gpu(2)["uuid"], "XID 79"),
    ]


def test_an_xid_error_of_a_mig_device_is_that_devices(nvml, tmp_path):
    nvml(gpu(0), gpu(1, **SPLIT, xids=[[0, 31, 5], [0, 48]]))
    run_folder = make_run_folder(tmp_path)
    sampled(run_folder, 0.3)
    assert [(event["gpu"], event["uuid"], event["message"]) for event in told(run_folder)] == [
        (1, "MIG-b2", "XID 31"),
        (1, gpu(1)["uuid"], "XID 48"),
    ]


@pytest.mark.parametrize("call", ["nvmlDeviceGetSupportedEventTypes", "nvmlEventSetCreate"])
def test_a_driver_that_tells_of_no_events_costs_one_line_and_no_samples(nvml, tmp_path, call):
    nvml(gpu(0, errors={call: "NOT_SUPPORTED"}), gpu(1, errors={call: "NOT_SUPPORTED"}))
    run_folder = make_run_folder(tmp_path)
    sampled(run_folder)
    (event,) = told(run_folder)
    assert (event["kind"], event["message"]) == ("field_missing", "XID errors are not reported: Not Supported")
    assert len(ticks(run_folder, 1)) > 3
