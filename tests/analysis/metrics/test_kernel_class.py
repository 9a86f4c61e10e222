"""Classes of kernels by name, on names as traces and libraries have them.

tests/data/kernel-names.csv is reviewed by hand. Rows of an "H200 run", nsys-ai, TraceLens and flameox are verbatim from
traces; the others are as public profiles or the library's own source write them, some cut short.
"""

import csv
import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from nightsweep.analysis.metrics.kernels import kernel_class
from nightsweep.analysis.metrics.kernels.kernel_class import KernelClass, add_classes, classify

TABLE = Path(__file__).parents[2] / "data" / "kernel-names.csv"
BOOLEAN = {"true": True, "false": False, "": None}

with TABLE.open(newline="") as lines:
    ROWS = list(csv.DictReader(lines))


def expected_class(row):
    return KernelClass(
        row["category"], row["precision"] or None, BOOLEAN[row["tensor_cores"]], row["collective"] or None
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"][:60])
def test_real_name(row):
    assert classify(row["name"]) == expected_class(row)


def test_table_has_every_category_precision_and_collective():
    assert {row["category"] for row in ROWS} == set(kernel_class.CATEGORIES)
    assert {row["precision"] for row in ROWS} - {""} == {"fp8", "int8", "bf16", "fp16", "tf32", "fp32", "fp64"}
    assert {row["collective"] for row in ROWS} - {""} == set(kernel_class.COLLECTIVES)


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("void my::convert_weights<float>(float *)", "other"),
        ("void at::native::elementwise_kernel_with_index<int, arange>(int)", "elementwise"),
        ("void rotary_embedding_kernel<float>(float *)", "elementwise"),
        ("void flashinfer::sampling::TopKSamplingKernel<float>(float *)", "indexing"),
        ("__amd_rocclr_copyBuffer", "memory"),
    ],
)
def test_words_inside_others_do_not_mislead(name, category):
    """convert is no convolution, with_index no indexing, rotary embedding no embedding, flashinfer no attention, and
    rocclr no RCCL."""
    assert classify(name).category == category


def test_scalar_arguments_are_not_the_data():
    name = "void k<at::native::batch_norm_update_stats_and_invert(at::Tensor &, double)::[lambda(float, float)]>(int)"
    assert classify(name).precision == "fp32"


def test_collective_that_moves_bytes_has_no_precision():
    assert classify("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)").precision is None
    assert classify("ncclDevKernel_ReduceScatter_Sum_f8e4m3_RING_LL").precision == "fp8"


def test_add_classes_keeps_rows_in_order_and_classes_nameless_as_other():
    names = [
        "nvjet_tst_64x8_64x16_1x2_h_bz_TNT",
        None,
        "ncclDevKernel_SendRecv(x)",
        "nvjet_tst_64x8_64x16_1x2_h_bz_TNT",
    ]
    kernels = pl.DataFrame({"name": names, "start_ns": [3, 1, 2, 0]})
    assert_frame_equal(
        add_classes(kernels),
        kernels.with_columns(
            category=pl.Series(["gemm", "other", "communication", "gemm"]),
            precision=pl.Series(["bf16", None, None, "bf16"]),
            tensor_cores=pl.Series([True, None, False, True]),
            collective=pl.Series([None, None, "send_recv", None]),
        ),
    )


def test_add_classes_to_nothing_has_its_columns():
    empty = add_classes(pl.DataFrame(schema={"name": pl.String}))
    assert dict(empty.schema) == {
        "name": pl.String,
        "category": pl.String,
        "precision": pl.String,
        "tensor_cores": pl.Boolean,
        "collective": pl.String,
    }


def test_a_real_trace_leaves_nothing_over(tmp_path):
    """The kernels of a DDP run on H200, by GPU time."""
    path = tmp_path / "r0.sqlite"
    path.write_bytes(gzip.decompress((TABLE.parent / "h200-ddp-r0.sqlite.gz").read_bytes()))
    joined = "FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName GROUP BY value"
    with closing(sqlite3.connect(path)) as trace:
        rows = trace.execute(f"SELECT value, SUM(end - start) {joined}").fetchall()
    found = add_classes(pl.DataFrame(rows, schema=["name", "ns"], orient="row"))
    assert found["category"].n_unique() > 5
    assert found.filter(category="other").is_empty()


def test_each_name_is_classified_once(monkeypatch):
    seen = []
    monkeypatch.setattr(kernel_class, "classify", lambda name: (seen.append(name), KernelClass("other"))[1])
    add_classes(pl.DataFrame({"name": ["a", "b"] * 1000}))
    assert sorted(seen) == ["a", "b"]
