"""What the tests of the report in a browser share: the browser, and a sweep with its report."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from nightsweep.analysis.report.__main__ import main as write_report
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tools.draw import main as draw
from tests.analysis.figures.made_up import made_up, write
from tests.analysis.report import browser as browsers
from tests.analysis.report.test_report import RECORD

TRACE = Path(__file__).parents[2] / "data/kineto-h200-ddp-r0.json.gz"


@pytest.fixture(scope="session")
def sweep(tmp_path_factory):
    """The tables, and the report of them."""
    root = tmp_path_factory.mktemp("browser")
    tables = made_up()
    point = tables["points"].filter(pl.col("strategy") == "fsdp2")["point_id"][0]
    own = {
        "point_id": point,
        "place": 1,
        "kind": "small_kernels",
        "cause": "idle",
        "share": 0.25,
        "advice": "fuse <them>",
    }
    causes = pl.DataFrame([own | {"remedy": '{"compile": "default"}', "method": "sums", "gpu_s": 7200.0}])
    loss = pl.when(pl.col("point_id") == point).then(float("nan")).otherwise("loss_last")
    points = tables["points"].with_columns(loss_last=loss)
    tables = dataset.Tables({**tables.frames, "diagnoses": causes, "points": points})
    folder = write(tables, root / "tables")
    look = root / f"points/{point}/traced"
    look.mkdir(parents=True)
    (look / "rank0.log").write_text("step 1\rstep 2\n\x1b[31mlast line </script>\x1b[0m\n")
    shutil.copy(TRACE, look / "trace-r0.json.gz")
    (look.parent / "record.json").write_text(json.dumps(RECORD | {"point_id": point}))
    draw(["setting_effects", "held_time", "loss", "--tables", str(folder), "--out", str(root / "figures")])
    arguments = ["--tables", folder, "--figures", root / "figures", "--records", root / "points"]
    write_report([str(a) for a in [*arguments, "--out", root / "report.html"]])
    return tables, root / "report.html", point


@pytest.fixture(scope="session")
def running():
    with browsers.Browser() as browser:
        yield browser


@pytest.fixture
def browser(running):
    """A browser of which nothing may complain, whatever a test does."""
    running.errors.clear()
    yield running
    assert running.errors == []
