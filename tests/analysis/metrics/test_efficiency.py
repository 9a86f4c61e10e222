"""MFU against stated peaks, bandwidth of copies, and the refusal of what cannot be."""

import polars as pl
import pytest

from nightsweep.analysis.metrics.points import efficiency, peaks
from nightsweep.analysis.tables import events
from nightsweep.analysis.tables.column import schema
from nightsweep.jobs.point.point import setting_schema
from nightsweep.jobs.record.json_files import convert
from nightsweep.jobs.record.launch_files import RankResult

H200 = {"device": "cuda", "device_name": "NVIDIA H200", "flops": {"step": 10**15, "hardware_step": 10**15}}
BF16 = {"precision": "bf16"}


def utilisation_of(*results, settings=BF16, step_ms=2000.0):
    return efficiency.utilisation([convert(r, RankResult) for r in results], settings, len(results), step_ms)


def test_mfu_of_one_and_of_two_ranks_of_the_same_speed():
    for ranks in (1, 2):
        row = utilisation_of(*[H200] * ranks)
        assert row["mfu_percent"] == row["hfu_percent"] == pytest.approx(100 * 1e15 / (989.4e12 * 2))
        assert row["flops_per_step"] == ranks * 10**15 and row.get("mfu_reason") is None


def test_the_same_step_in_less_precision_uses_less_of_the_device():
    at = {
        p: utilisation_of(H200, settings={"precision": p}, step_ms=20000.0)["mfu_percent"]
        for p in ("fp32", "tf32", "bf16")
    }
    assert at["fp32"] > at["tf32"] > at["bf16"]


def test_bf16_throughout_has_the_peak_of_bf16():
    pure, mixed = (utilisation_of(H200, settings={"precision": p}, step_ms=20000.0) for p in ("bf16_pure", "bf16"))
    assert pure["mfu_percent"] == mixed["mfu_percent"] > 0


@pytest.mark.parametrize(("float8", "peak"), [("none", 989.4e12), (None, 989.4e12), ("tensorwise", 1978.9e12)])
def test_products_in_float8_have_the_peak_of_float8(float8, peak):
    row = utilisation_of(H200, settings={"precision": "bf16", "float8": float8})
    assert row["peak_flops_per_s"] == peak and row["mfu_percent"] == pytest.approx(100 * 1e15 / (peak * 2))


@pytest.mark.parametrize(
    ("results", "settings", "reason"),
    [
        ([{**H200, "flops": None}], BF16, "not counted"),
        ([{**H200, "flops": {"reason": "ValueError: x"}}], BF16, "not counted: ValueError: x"),
        ([H200, {**H200, "flops": {"reason": "E"}}], BF16, "not counted: E"),
        ([{**H200, "device": "cpu", "device_name": None}], BF16, "a CPU has no stated peak"),
        (
            [{**H200, "device_name": "NVIDIA H200 MIG 1g.18gb"}],
            BF16,
            "no stated peak of NVIDIA H200 MIG 1g.18gb in bf16",
        ),
        ([{**H200, "device_name": "NVIDIA L40S"}], {"precision": "fp64"}, "no stated peak of NVIDIA L40S in fp64"),
        (
            [H200, {**H200, "device_name": "NVIDIA B200"}],
            BF16,
            "ranks on devices of several models: NVIDIA B200, NVIDIA H200",
        ),
    ],
)
def test_no_mfu_has_a_reason(results, settings, reason):
    row = utilisation_of(*results, settings=settings)
    assert row["mfu_reason"] == reason and row.get("mfu_percent") is row.get("hfu_percent") is None


def test_a_rank_that_told_nothing_is_missed():
    assert efficiency.utilisation([convert(H200, RankResult)], BF16, 2, 2000.0)["mfu_reason"] == "not counted"


def test_more_than_the_peak_is_refused():
    assert utilisation_of(H200, step_ms=1010.75)["mfu_percent"] == pytest.approx(100, abs=0.01)
    row = utilisation_of(H200, step_ms=505.0)
    assert row["mfu_reason"] == "refused: 200.1 % of the stated peak" and "mfu_percent" not in row
    # Hardware FLOPs alone can pass it: then the count or the time is wrong, and with it the MFU.
    row = utilisation_of({**H200, "flops": {"step": 10**15, "hardware_step": 3 * 10**15}})
    assert "refused: 151.6" in row["mfu_reason"] and "mfu_percent" not in row


def test_peaks_are_of_whole_names():
    precisions = {*setting_schema("precision")["enum"], "fp8"}
    for name, peak in peaks.PEAKS.items():
        assert peaks.peak_of(name) is peaks.peak_of(f"NVIDIA {name}") is peak
        assert set(peak.flops_per_s) <= precisions
        assert peak.flops_per_s["fp32"] <= peak.flops_per_s["bf16"] == peak.flops_per_s["fp16"]
        assert 1e12 < peak.flops_per_s["fp32"] < 1e15 and 0.5e12 < peak.memory_bytes_per_s < 1e13
    assert (
        peaks.peak_of("NVIDIA H100 80GB HBM3 MIG 3g.40gb") is peaks.peak_of("NVIDIA H20") is peaks.peak_of(None) is None
    )


def copies(*rows):
    names = ("direction", "source", "target", "bytes", "start_ns", "end_ns")
    rows = [{"rank": 0, "device": 0, **dict(zip(names, row, strict=True))} for row in rows]
    return pl.DataFrame(rows, schema(events.EVENTS["copies"]))


def devices(**device):
    return pl.DataFrame([{"rank": 0, "device": 0, **device}], schema(events.DEVICES))


def test_bandwidth_of_copies_by_direction_and_kind_of_host_memory():
    table = efficiency.bandwidth(
        copies(
            ("DtoD", "device", "device", 1000, 0, 10),
            ("DtoD", "device", "device", 1000, 5, 20),  # side by side with the first: 20 ns in all
            ("HtoD", "pageable", "device", 60, 0, 10),
            ("HtoD", "pinned", "device", 500, 10, 20),
            ("DtoH", "device", "pinned", 400, 10, 20),
            ("PtoP", "device", "device", 400, 10, 20),
        ),
        devices(memory_bytes_per_s=400e9),
    )
    rows = {(row["direction"], row["memory"]): row for row in table.iter_rows(named=True)}
    assert set(rows) == {("DtoD", None), ("HtoD", "pageable"), ("HtoD", "pinned"), ("DtoH", "pinned")}
    within = rows["DtoD", None]
    assert (within["bytes"], within["busy_ns"], within["bytes_per_s"]) == (4000, 20, 200e9)
    assert within["percent"] == pytest.approx(50) and within["reason"] is None
    assert rows["HtoD", "pageable"]["bytes_per_s"] == 6e9 and rows["HtoD", "pinned"]["bytes_per_s"] == 50e9
    assert rows["HtoD", "pinned"]["percent"] is None and "no stated peak" in rows["HtoD", "pinned"]["reason"]


@pytest.mark.parametrize(
    ("device", "percent", "reason"),
    [
        ({"memory_bytes_per_s": 100e9}, None, "refused: 200.0 % of the memory's bandwidth"),
        ({"name": "NVIDIA H200"}, 100 * 200e9 / 4.8e12, None),
        ({"name": "NVIDIA H200", "memory_bytes_per_s": 2e12}, 10, None),
        ({"name": "Some GPU"}, None, "the device's memory has no stated bandwidth"),
    ],
)
def test_peak_of_the_memory_is_the_traces_or_the_stated_one(device, percent, reason):
    row = efficiency.bandwidth(copies(("DtoD", "device", "device", 1000, 0, 10)), devices(**device)).row(0, named=True)
    assert row["percent"] == (percent and pytest.approx(percent)) and row["reason"] == reason
    assert row["bytes_per_s"] == 200e9


def test_no_copies_and_copies_without_time():
    assert efficiency.bandwidth(copies(), devices()).is_empty()
    row = efficiency.bandwidth(copies(("DtoD", "device", "device", 8, 5, 5)), devices(name="NVIDIA H200"))
    assert row["bytes_per_s"].to_list() == [None] and row["reason"].to_list() == ["no time"]
