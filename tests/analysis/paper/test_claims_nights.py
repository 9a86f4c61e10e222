"""Times are compared within a night, and ratios of times within the nights that have both."""

import numpy as np
import polars as pl
import pytest

from nightsweep.analysis.paper.claims.claim import NOT_TESTED, SUPPORTED
from nightsweep.analysis.paper.claims.claims import CLAIMS
from nightsweep.analysis.sweep import dataset, effect, nights
from tests.analysis.paper.paper_tables import made_up

BY_ID = {claim.id: claim for claim in CLAIMS}


@pytest.fixture(scope="module")
def agreeing() -> dataset.Tables:
    return made_up()


RUNS = pl.DataFrame(
    [("p", 0, 0, 1.0), ("q", 0, 1, 1.3), ("r", 1, 2, 2.1), ("s", 1, 0, 2.2), ("t", None, 3, 9.0)],
    schema=["point_id", "night", "repeat", "ms"], orient="row",
)  # fmt: skip
OTHERS = pl.DataFrame(
    [("u", 0, 0, 0.6), ("v", 0, 1, 0.9), ("w", 0, 2, 0.8), ("x", 1, 1, 1.9), ("y", 2, 2, 7.0)],
    schema=["point_id", "night", "repeat", "ms"], orient="row",
)  # fmt: skip


def test_times_are_compared_within_nights():
    """Against least squares of a level's effect and one of each night; a night with one level alone tells nothing."""
    found = effect.Side.between([(1, RUNS), (-1, OTHERS)], "ms")
    values = np.array([1.0, 1.3, 2.1, 2.2, 0.6, 0.9, 0.8, 1.9])
    level, later = [1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 1]
    design = np.array([level, later, [1] * 8], float).T
    told, squares, _, _ = np.linalg.lstsq(design, values)
    assert found.mean == pytest.approx(told[0]) and found.freedom == 5
    assert found.variance == pytest.approx(squares[0] / 5 * np.linalg.inv(design.T @ design)[0, 0])
    assert found.n == 3 and set(found.points) == set("pqrsuvwx")
    assert effect.Side.between([(1, RUNS.tail(1)), (-1, OTHERS)], "ms") is None


def test_four_sides_are_compared_within_nights():
    """Against least squares of what the four differ by beyond two effects of each night, which nights do not share."""
    counts = {0: (3, 2, 4, 2), 1: (2, 5, 2, 3)}
    signs, spread = (1, -1, -1, 1), np.random.default_rng(1)
    rows = [
        (night, place, n) for night, all_ in counts.items() for place, count in enumerate(all_) for n in range(count)
    ]
    frame = pl.DataFrame(rows, schema=["night", "place", "repeat"], orient="row").with_columns(
        ms=pl.Series(spread.normal(size=len(rows))), point_id=pl.int_range(pl.len()).cast(pl.String)
    )
    found = effect.Side.between([(sign, frame.filter(place=n)) for n, sign in enumerate(signs)], "ms")
    night, place = frame["night"].to_numpy(), frame["place"].to_numpy()
    own = [(night == one) * effects for one in counts for effects in (1, place < 2, place % 2 == 0)]
    design = np.array([(place < 2) * (place % 2 == 0), *own], float).T
    told, squares, _, _ = np.linalg.lstsq(design, frame["ms"].to_numpy())
    assert found.mean == pytest.approx(told[0]) and found.freedom == len(rows) - 7
    assert found.variance == pytest.approx(squares[0] / (len(rows) - 7) * np.linalg.inv(design.T @ design)[0, 0])


def test_a_slow_night_changes_no_ratio(agreeing):
    """Of each pair a repeat on another evening, when everything took twice as long."""
    at, late = "2026-01-01T20:00:00+00:00", "2026-01-02T20:00:00.5+00:00"
    slow = pl.col("repeat") == 2
    points = agreeing["points"].with_columns(
        pl.when(slow).then(pl.lit(late)).otherwise(pl.lit(at)).alias("started_at"),
        *(pl.when(slow).then(pl.col(name) * 2).otherwise(name).alias(name) for name in ("step_ms_mean", "epoch_s")),
        *(
            pl.when(slow).then(pl.col(name) / 2).otherwise(name).alias(name)
            for name in ("samples_per_s", "tokens_per_s")
        ),
    )
    two = dataset.Tables({**agreeing.frames, "points": points})
    for claim in CLAIMS:
        own, other = (claim.verdict(tables) for tables in (agreeing, two))
        # Two kinds of job are compared in one night: of its three repeats two are left.
        assert (own.status, other.status) == (SUPPORTED, NOT_TESTED if claim.id == "C10" else SUPPORTED)
        for a, b in zip(own.parts, other.parts, strict=True):
            assert a.effect.value == pytest.approx(b.effect.value, rel=1e-6)
            assert claim.id == "C10" or a.effect.n == b.effect.n


ONE_GPU, LARGE, LLM = pl.col("ranks_per_node") == 1, pl.col("image_size") == 500, pl.col("workload") == "llm"


BETWEEN = [
    ("C2", "that ratio on 1 GPU / ", ONE_GPU, ~pl.col("pin_memory")),
    ("C4", "efficiency at 500 px / ", LARGE, ONE_GPU),
    ("C10", "efficiency of image jobs / ", LLM, ONE_GPU),
]


@pytest.mark.parametrize(("claim", "part", "side", "changed"), BETWEEN)
def test_an_effect_of_one_night_is_not_compared_with_that_of_another(agreeing, claim, part, side, changed):
    """On a second evening there are runs of one side of the comparison alone, with quite another effect."""
    points = agreeing["points"].with_columns(started_at=pl.lit("2026-01-01T20:00:00+00:00"))
    late = points.filter(side).with_columns(
        pl.concat_str(pl.lit("late-"), "point_id").alias("point_id"),
        pl.col("repeat") + 10,
        pl.lit("2026-01-02T20:00:00+00:00").alias("started_at"),
        pl.when(changed).then(pl.col("step_ms_mean") * 3).otherwise("step_ms_mean").alias("step_ms_mean"),
        pl.when(changed).then(pl.col("samples_per_s") / 3).otherwise("samples_per_s").alias("samples_per_s"),
    )
    both = dataset.Tables({**agreeing.frames, "points": pl.concat([points, late])})
    (before,), (after,) = (
        [one.effect for one in BY_ID[claim].verdict(tables).parts if one.what.startswith(part)]
        for tables in (agreeing, both)
    )
    assert (after.value, after.n) == (pytest.approx(before.value), before.n)
    assert not any(point.startswith("late-") for point in after.points)


@pytest.mark.parametrize(("claim", "part", "side"), [(*row[:3],) for row in BETWEEN])
def test_nights_with_other_numbers_of_repeats_weigh_the_same_on_both_sides(claim, part, side):
    """Two evenings, in the second of which what each side compares differs by as much more. One side ran more often in
    the first, the other in the second: what they differ by is the same as in each evening."""
    base = made_up()["points"].filter(pl.col("repeat") == 0)
    rows = []
    for night, (ours, theirs) in enumerate([(5, 3), (3, 5)]):
        for own, repeats in ((side, ours), (~side, theirs)):
            for n in range(repeats):
                rows.append(
                    base.filter(own).with_columns(
                        pl.format("{}-{}-{}", "point_id", pl.lit(night), pl.lit(n)).alias("point_id"),
                        pl.lit(10 * night + n, dtype=base.schema["repeat"]).alias("repeat"),
                        pl.lit(f"2026-01-0{night + 1}T20:00:00+00:00").alias("started_at"),
                    )
                )
    points = pl.concat(rows)
    many, pageable = pl.col("ranks_per_node") > 1, ~pl.col("pin_memory")
    slower = (
        pl.when((pl.col("started_at") > "2026-01-02") & (pageable if claim == "C2" else many)).then(1.5).otherwise(1.0)
    )
    both = points.with_columns(pl.col("step_ms_mean") * slower, pl.col("samples_per_s") / slower)
    tables = [dataset.Tables({**made_up().frames, "points": frame}) for frame in (points, both)]
    plain, shifted = (
        next(one.effect for one in BY_ID[claim].verdict(each).parts if one.what.startswith(part)) for each in tables
    )
    assert shifted.value == pytest.approx(plain.value) and shifted.n >= 3


def test_nights_lie_between_pauses():
    rows = [
        ("c", "2026-01-02T01:30:00Z", None),
        ("a", "2026-01-01T20:00:00Z", 9000.0),
        ("b", "2026-01-01T23:29:00Z", 60.0),
        ("e", None, 1.0),
        ("d", "2026-01-01T21:00:00Z", 1.0),
    ]
    points = pl.DataFrame(rows, schema=["point_id", "started_at", "wall_s"], orient="row")
    found = nights.add_nights(points.filter(pl.col("point_id") != "a"), points)
    assert found.select("point_id", "night").rows() == [("c", 1), ("b", 0), ("e", None), ("d", 0)]


def test_nights_of_joined_sets_are_apart():
    rows = [
        ("a", "2026-01-01T20:00:00Z", 60.0),
        ("b", "2026-01-01T20:05:00Z", 60.0),
        ("c", "2026-01-03T20:00:00Z", 1.0),
    ]
    one, two = (
        dataset.Tables({"points": pl.DataFrame(own, schema=["point_id", "started_at", "wall_s"], orient="row")})
        for own in (rows[::2], rows[1:])
    )
    points = dataset.join({"one": one, "two": two})["points"]
    found = nights.add_nights(points, points).sort("point_id").select("point_id", "night").rows()
    assert found == [("one/a", 0), ("one/c", 1), ("two/b", 2), ("two/c", 3)]
