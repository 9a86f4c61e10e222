"""`nightsweep diagnose --ranks`: recorded runs of two ranks over other numbers of ranks, and what cannot be told."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import numpy as np
import polars as pl
import pytest

from nightsweep.analysis.diagnosis import over_ranks
from nightsweep.analysis.diagnosis.evidence import contention, sources
from nightsweep.analysis.diagnosis.thresholds import NOISE
from nightsweep.analysis.tools import cli
from nightsweep.jobs.point.point import complete
from tests.analysis.diagnosis.test_diagnose_command import SCHEMA
from tests.analysis.h200 import unpacked
from tests.fakes.ranks import unpack as export
from tests.labelled import kept, packed

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """FSDP2 over sockets: nine tenths of the step are communication."""
    return sources.gather([unpacked("two-nodes", tmp_path_factory.mktemp("two"))])


def test_messages_take_longer_among_more_ranks(sharded):
    """Nothing hides them, so the step grows by them: at most as a ring sends more, by 1.5 on four ranks and 1.75 on
    eight, and what ranks wait for each other grows, too."""
    found = over_ranks.predict(sharded, [2, 4, 8, 4])
    assert [step.ranks for step in found.predicted] == [2, 4, 8], "each once"
    two, four, eight = found.predicted
    assert two.ms == pytest.approx(found.measured.ms, rel=1e-3)
    assert found.measured.ms < four.ms < eight.ms
    assert found.lost["transfer that nothing hides"] > 0.5 * found.measured.ms
    assert four.low <= four.ms <= four.high <= 1.5 * found.measured.ms * (1 + NOISE.value)
    assert sum(found.lost.values()) == pytest.approx(found.measured.ms - found.alone.ms)


def test_ranks_share_the_optimizer_s_work_where_gradients_are_scattered(tmp_path):
    """FSDP2, whose step kernels decide: alone, a rank's optimizer has twice as much to do."""
    found = over_ranks.predict(sources.gather([kept.unpacked("healthy_fsdp2", tmp_path)]), [4])
    assert found.lost["the optimizer's work"] < 0 < found.lost["copies to and from messages"]
    averaged = sources.gather([export("ddp-r0", tmp_path), export("ddp-r1", tmp_path)])
    assert over_ranks.predict(averaged, [4]).lost["the optimizer's work"] == 0


def test_the_step_of_a_card_alone_is_told_from_a_trace_on_four(tmp_path):
    """Llama-8B by FSDP2 on four H200s, two steps. In the same quarter of an hour the same cards, each alone but all at
    once, took 857 to 861 ms (three starts). Kernel by kernel, with the same products in the same order, those beside
    messages took 44, 37, 42 and 49 ms longer on ranks 0 to 3 than alone."""
    folder = packed.unpacked(DATA / "fsdp2_on_four", tmp_path)
    evidence = sources.gather(sorted(folder.glob("trace-r*")))
    found = over_ranks.predict(evidence, [8])
    assert found.alone.ms == pytest.approx(859, rel=0.02)
    # on eight in another night, 4 starts: 0.998 of the step on four (10 starts)
    assert found.predicted[0].low < 0.998 * found.measured.ms < found.predicted[0].high
    assert found.predicted[0].ms == pytest.approx(0.998 * found.measured.ms, rel=0.01)
    longer = [(own["took"] * (1 - own["factor"])).sum() / 2e6 for own in contention.slowdowns(evidence.lanes)]
    assert longer == pytest.approx([44, 37, 42, 49], rel=0.25)


def test_of_sharded_copies_more_ranks_are_more_copies(tmp_path):
    """Llama-8B on four H200s, in two copies of two shards. In the same night one alone took 881 ms (five starts)."""
    bare = sources.gather(sorted(packed.unpacked(DATA / "hsdp_on_four", tmp_path).glob("trace-r*")))
    settings = {"workload": "llm", "model": "llama-8b", "strategy": "fsdp2", "replicas": 2, "ranks_per_node": 4}
    evidence = dataclasses.replace(bare, point=complete(settings))
    found = over_ranks.predict(evidence, [2, 4, 8])
    assert found.alone.ms == pytest.approx(881, rel=0.02)
    one_copy, same, four_copies = found.predicted
    assert same.ms == pytest.approx(found.measured.ms)
    assert one_copy.ms < same.ms < four_copies.ms < 1.02 * same.ms
    with pytest.raises(ValueError, match="a multiple of 2 ranks, which share a copy of a model, not 3"):
        over_ranks.predict(evidence, [3])
    with pytest.raises(ValueError, match=r"among all ranks, found some among \[2\]"):
        over_ranks.predict(bare, [8])


def test_a_step_is_as_long_as_the_longest_of_its_ranks():
    """Half of one rank's steps take 3: three quarters on two ranks. Of four ranks 15 of 16 do: a half on one."""

    def on(ratio, *lengths):
        return over_ranks.Lengths(np.array(lengths, float), 0.5).on(ratio)

    assert on(1, 1, 3, 1, 3) == 2.5
    assert on(2, 3, 1) == 1 / 4 + 3 * 3 / 4 + 0.5
    assert on(1 / 4, *[3] * 15, 1) == 2.5
    assert over_ranks.Lengths(np.array([1.0, 3.0]), 0.5).shortest_ms == 1.5


def test_ranks_that_average_now_and_then_are_refused(sharded):
    apart = dataclasses.replace(sharded, point=dataclasses.replace(sharded.point, strategy="local_sgd"))
    with pytest.raises(ValueError, match="meet in each step; not local_sgd"):
        over_ranks.predict(apart, [4])


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """MobileNetV2, fp16 at 500 px, on two H200s: one step in two stalls for as long as freeing a batch takes, and none
    of the two that were traced. In the same half hour steps took 140.4 ms on four (four starts), 130.7 on two (two)
    and 122.2 on one (four)."""
    return sources.gather([packed.unpacked(DATA / "uneven_on_two", tmp_path_factory.mktemp("uneven"))])


def test_uneven_steps_make_more_ranks_slower(uneven):
    found = over_ranks.predict(uneven, [4])
    (four,) = found.predicted
    assert found.measured.ms == pytest.approx(130.7, rel=0.02)
    assert four.low < 140.4 < four.high and four.ms == pytest.approx(140.4, rel=0.02)
    assert found.alone.ms == pytest.approx(122.2, rel=0.02)
    steady = dataclasses.replace(uneven, steps=uneven.steps.with_columns(step_ms=pl.lit(138.2)))
    assert over_ranks.predict(steady, [4]).predicted[0].ms == pytest.approx(138.2, rel=0.01)


def test_what_comes_again_and_again_comes_on_any_number_of_ranks(uneven):
    """Every tenth step takes 400 ms, as with a checkpoint."""
    tenth = pl.col("step") % 10 == uneven.steps["step"].min() % 10
    saving = uneven.steps.with_columns(step_ms=pl.when(tenth).then(400.0).otherwise("step_ms"))
    plain = uneven.steps.filter(~tenth)
    with_them, without = (
        over_ranks.predict(dataclasses.replace(uneven, steps=steps), [8]) for steps in (saving, plain)
    )
    added = with_them.measured.ms - without.measured.ms
    assert added > 20
    assert with_them.predicted[0].ms - without.predicted[0].ms == pytest.approx(added, rel=0.01)


def test_fewer_ranks_take_no_less_than_the_shortest_step(uneven):
    """However long some of their steps are."""
    odd = uneven.steps.with_columns(step_ms=pl.when(pl.col("step") % 7 < 2).then(3000.0).otherwise("step_ms"))
    found = over_ranks.predict(dataclasses.replace(uneven, steps=odd), [1, 8])
    one, eight = found.predicted
    shortest = uneven.steps["step_ms"].min()
    assert 0.98 * shortest < one.low < one.ms < found.measured.ms < eight.ms <= eight.high


def lane_of(speed, beside):
    """Layers of a long and a short product of one name; of so many layers the long one runs beside a message, which
    makes it 1.3 times as long."""
    rows, at = [], 0
    for layer in range(26):
        for name, took in (("norm", 10), ("product", 1000), ("act", 20), ("product", 100)):
            slow = layer < beside and took == 1000
            end = at + round(took * speed * (1.3 if slow else 1))
            rows += [(name, 132, 7, at, end, "compute")] + ([("nccl", 8, 9, at, end, "communication")] if slow else [])
            at = end
    names = ["name", "blocks", "stream", "start_ns", "end_ns", "category"]
    return SimpleNamespace(own={"kernels": pl.DataFrame(rows, names, orient="row")})


@pytest.mark.parametrize("beside", [(13, 13), (20, 6), (6, 20), (23, 0)])
def test_kernels_beside_messages_are_compared_with_those_that_do_the_same(beside):
    """Of ranks of which one is slower, whoever has more of its kernels beside messages."""
    lanes = [lane_of(speed, own) for speed, own in zip((1.0, 1.4), beside, strict=True)]
    found = contention.slowdowns(lanes)
    assert [own["name"].unique().to_list() for own in found] == [["product"] * bool(own) for own in beside]
    for own in found:
        assert own["factor"].to_list() == pytest.approx([1 / 1.3] * len(own), rel=0.01)


def test_who_shares_more_than_gradients_is_refused(sharded):
    split = dataclasses.replace(sharded, point=dataclasses.replace(sharded.point, strategy="tp"))
    with pytest.raises(ValueError, match="their own batch; not tp"):
        over_ranks.predict(split, [4])


def test_the_command(capsys, tmp_path):
    ranks = [str(export(f"zero3-r{rank}", tmp_path)) for rank in (0, 1)]
    assert cli.main(["diagnose", *ranks, "--ranks", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, SCHEMA)
    assert [step["ranks"] for step in found["over_ranks"]["steps"]] == [1, 2, 4]
    assert cli.main(["diagnose", *ranks, "--ranks", "4", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[lines.index("  ranks    step (ms)  efficiency") + 1 :][:4]] == list(
        "1248"
    )


def test_one_rank_of_two_cannot_tell(capsys, tmp_path):
    assert cli.main(["diagnose", str(export("ddp-r0", tmp_path)), "--ranks", "4"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
