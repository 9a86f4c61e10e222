"""What is read of made-up GPUs: which are the job's, fields that are missing or fail, GPM counters."""

import time

import pytest

from nightsweep.jobs.host import gpus
from nightsweep.jobs.telemetry.gpu import fields, gpm, log
from tests.fakes.nvml import gpu
from tests.jobs.telemetry.sampling import HOST, SPLIT, make_run_folder, rows, sampled, ticks, told

pytestmark = pytest.mark.usefixtures("bare")


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
    assert [g.uuid for g in gpus.job_gpus()] == [gpu(w)["uuid"] if isinstance(w, int) else w for w in wanted]
    works, text = gpus.probe()
    assert works == bool(wanted)
    assert text == ("3 GPUs" if wanted else "NVML: none of 3 GPUs is this job's")


@pytest.mark.parametrize("uuid", [gpu(0)["uuid"], "MIG-a1"])
def test_a_uuid_is_made_whole_where_its_prefix_is_left_out(uuid):
    assert gpus.full_uuid(uuid) == uuid
    assert gpus.full_uuid(gpu(0)["uuid"].removeprefix("GPU-")) == gpu(0)["uuid"]


def test_a_gpu_that_cannot_be_reached_does_not_hide_the_others(nvml):
    nvml(gpu(0), gpu(1, errors={"handle": "GPU_IS_LOST"}), gpu(2))
    assert [(g.index, g.uuid) for g in gpus.job_gpus()] == [(n, gpu(n)["uuid"]) for n in (0, 2)]


def test_a_mig_device_has_its_own_counters_and_nothing_of_the_whole_gpu(nvml, monkeypatch, tmp_path):
    library, run_folder = nvml(gpu(0, **SPLIT)), make_run_folder(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-b2")
    found = sampled(run_folder)
    header = log.header_of(run_folder.nvml(HOST))
    assert header["gpus"] == [{"gpu": 0, "uuid": "MIG-b2", "mig": True}]
    missing = header["missing"]["MIG-b2"]
    assert {name for name, why in missing.items() if why == fields.MIG_REASON} == {
        "power_instant_w", "power_average_w", "power_limit_w", "energy_j"
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
    library, run_folder = nvml(gpu(0, errors=errors), gpu(1)), make_run_folder(tmp_path)
    sampled(run_folder, 1.2)
    missing = log.header_of(run_folder.nvml(HOST))["missing"]
    assert missing[gpu(1)["uuid"]] == {}
    assert missing[gpu(0)["uuid"]] == {
        "memory_temperature_c": "Not Supported",
        "energy_j": "Insufficient Permissions",
        "processes": "Insufficient Permissions",
        "foreign_processes": "Insufficient Permissions",
        "fp64_active_percent": "Not Supported",
    }
    for number, lost in ((0, set(missing[gpu(0)["uuid"]])), (1, {"foreign_processes"})):
        found = rows(run_folder, number)
        assert {name for name in fields.TYPES if all(row[name] is None for row in found)} == lost
    assert [library.calls[0, name] for name in errors] == [1] * 4  # asked once, never again
    assert library.calls[1, "NVML_FI_DEV_MEMORY_TEMP"] > 10
    assert told(run_folder) == []  # they were missing from the beginning


def test_a_field_that_fails_for_a_moment_comes_back(nvml):
    library = nvml(gpu(0, errors={"nvmlDeviceGetTemperature": ["UNKNOWN", 2]}))
    missing = {}
    reader = fields.Reader(gpus.job_gpus()[0], missing)
    for _ in range(2):
        assert "temperature_c" not in reader.read(*fields.EVERY_TICK)
        assert missing == {"temperature_c": "Unknown Error"}
    assert reader.read(*fields.EVERY_TICK)["temperature_c"] == 55
    assert missing == {} and library.calls[0, "nvmlDeviceGetTemperature"] == 3


def counters(library):
    """A reader of the first GPU's counters that has seen them move once, and the time that moves them, s."""
    clock, missing = [0.05], {}
    library.now = lambda: clock[0]
    reader = gpm.GpmReader(gpus.job_gpus()[0], missing)
    clock[0] += 0.1
    assert reader.read() == {}  # not known since when
    return clock, reader, missing


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


def test_counters_are_asked_as_often_as_they_move_and_no_more(nvml, tmp_path):
    for attempt in range(10):  # other tests keep the machine busy: readings go missing
        (tmp_path / str(attempt)).mkdir()
        library, run_folder = nvml(gpu(0)), make_run_folder(tmp_path / str(attempt))
        sampled(run_folder, 1.0, hz=50)
        assert library.calls[0, "nvmlGpmSampleGet"] <= 13
        if len(ticks(run_folder, 0)) > 45:
            break
    assert library.calls[0, "nvmlGpmSampleGet"] >= 8


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"gpm": False}, "Not Supported"),
        ({"errors": {"nvmlGpmQueryDeviceSupport": "FUNCTION_NOT_FOUND"}}, "Function Not Found"),
    ],
)
def test_a_gpu_without_counters_says_so_for_every_field_of_theirs(nvml, tmp_path, settings, why):
    nvml(gpu(0, **settings))
    run_folder = make_run_folder(tmp_path)
    found = sampled(run_folder)
    assert log.header_of(run_folder.nvml(HOST))["missing"] == {
        gpu(0)["uuid"]: dict.fromkeys(gpm.NAMES, f"no GPM counters: {why}")
    }
    assert len(ticks(run_folder, 0)) > 3 and all(row[name] is None for row in found for name in gpm.NAMES)
