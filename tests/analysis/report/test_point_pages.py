"""The data of the points' own pages: what many points share is written once, and comes back whole."""

import json
import math

import polars as pl
import pytest

from nightsweep.analysis.report import lanes, point_pages
from nightsweep.analysis.report.figure_data import link
from nightsweep.jobs.record.record import Record


def values(column, count):
    """What page/point.js makes of it."""
    if "same" in column:
        return [column["same"]] * count
    return [column["values"][place] for place in column["of"]] if "of" in column else column["values"]


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        ([True] * 5, {"same"}),
        ([True, False, False, True, False], {"values", "of"}),
        ([0.01, 0.02, 0.01, 0.01, None], {"values"}),
        ([1.0, 66.9e12, 1.0, 1.0, 66.9e12], {"values", "of"}),
        (["a", None, "a", "a", "a"], {"values", "of"}),
        ([], {"values"}),
    ],
)
def test_a_column_comes_back_as_it_was(given, keys):
    column = json.loads(json.dumps(point_pages.column(pl.Series(given))))
    assert column.keys() == keys
    assert values(column, len(given)) == given


def test_numbers_that_are_none_are_words():
    column = point_pages.column(pl.Series([math.nan, math.inf, math.nan, math.nan, 1.5]))
    assert values(column, 5) == ["nan", "inf", "nan", "nan", 1.5]


def test_commands_that_differ_in_the_point_alone_are_one_text():
    texts = point_pages.Texts()
    found = [Record(status="ok", point_id=i, command=f"run results/{i}") for i in ("0123456789ab", "ba9876543210")]
    facts = point_pages.facts(found, texts)
    assert facts["0123456789ab"] == facts["ba9876543210"]
    own = [list(texts.places)[place] for place in facts["0123456789ab"]]
    assert dict(zip(own[0].split("\n"), own[1:], strict=True))["command"] == "run results/{point}"


@pytest.mark.parametrize(
    ("bars", "unit_ns", "expected"),
    [
        ([(0, 10, "a"), (10, 25, "b"), (40, 41, "c")], 1, [(0, 10, "a"), (0, 15, "b"), (15, 1, "c")]),
        ([(0, 10, "a"), (10, 25, "b"), (40, 41, "c")], 10, [(0, 2, "b"), (2, 1, "c")]),
        ([(0, 100, "a"), (20, 30, "inside"), (50, 150, "after")], 10, [(0, 10, "a"), (0, 5, "after")]),
        ([(n * 7, n * 7 + 3, "ab"[n == 5]) for n in range(100)], 10, [(0, 70, "a")]),
    ],
)
def test_bars_lie_beside_each_other_and_short_ones_join(bars, unit_ns, expected):
    frame = pl.DataFrame(bars, ["start_ns", "end_ns", "name"], orient="row").with_columns(on_path=pl.col("name") == "a")
    assert lanes.spans(frame, unit_ns) == [(*bar, bar[-1] == "a") for bar in expected]


@pytest.mark.parametrize(("points", "ranks"), [(1, 8), (100, 8), (100, 1)])
def test_timelines_of_many_points_stay_within_their_share(monkeypatch, points, ranks):
    monkeypatch.setattr(lanes, "BYTES", 250_000)
    bars = [
        (f"p{point}", rank, lane, f"kernel{n % 7}", 100 * n, 100 * n + 60, n // 500)
        for point in range(points)
        for rank in range(ranks)
        for lane in ("compute", "call")
        for n in range(1000 if points == 1 else 300)
    ]
    columns = ["point_id", "rank", "lane", "name", "start_ns", "end_ns", "step"]
    events = pl.DataFrame(bars, columns, orient="row").with_columns(zero_ns=0, on_path=pl.col("lane") == "call")
    texts = point_pages.Texts()
    found = lanes.point_lanes(events, texts.place)
    assert len(json.dumps(found, separators=(",", ":"))) < 1.2 * lanes.BYTES + 100 * points
    assert len(found) == points and all(own["ranks"] == ranks for own in found.values())
    if points == 1:
        assert len(found["p0"]["lanes"]) == 16 and sum(len(lane[2]) for lane in found["p0"]["lanes"]) == 16 * 3000


NAMES = {
    "void at::native::<unnamed>::reduce<(int)128, at::Op<float>, (unsigned int)4>(T3)": (
        "at::native::reduce<128, at::Op<float>, 4>"
    ),
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)": "ncclDevKernel_AllGather_RING_LL",
    "void f<g(at::It &)::[lambda(int) (instance 1)]>(int, T3)": "f<g(at::It &)::[lambda(int) (instance 1)]>",
    "Memcpy HtoD (Pageable -> Device)": "Memcpy HtoD (Pageable -> Device)",
    "nvjet_sm90_tst_64x128_64x8_2x1_v_bz_NTN": "nvjet_sm90_tst_64x128_64x8_2x1_v_bz_NTN",
    "step 7": "step 7",
}


def test_names_of_kernels_keep_what_tells_them_apart():
    found = lanes.short_names(pl.DataFrame({"name": list(NAMES)}))
    assert found.to_dict(as_series=False) == {"name": list(NAMES.values())}


def test_a_link_needs_nothing_escaped_in_html():
    text = link(pl.DataFrame({"name": ['a<b>&"c"', "it's 5 %"]}))
    assert not set(text) & set("\"'<>\n")
