"""A published data set grows by the points that it has not, tells no secret, and is drawn to the same bytes twice."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest

from nightsweep.analysis.ingest.point_tables import KEYS
from nightsweep.analysis.paper import families
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables import points as tables
from nightsweep.analysis.tools import draw, techniques
from nightsweep.analysis.tools.cli import main
from nightsweep.analysis.tools.publish import published_set
from nightsweep.analysis.tools.publish.anonymizer import Anonymizer
from tests.analysis.tools.secret_results import HOSTS, POINT, SECRETS, make_results

PUBLISHED = Path(__file__).parents[3] / "data"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "fsdp2"
    make_results(folder)
    # Of a point of the tables, which are made up, a real record.
    point = (folder / f"points/{POINT}").rename(folder / f"points/{measured(folder)[-1]}")
    set_dirty(point, False)
    return folder


def set_dirty(point, dirty):
    record = json.loads((point / "record.json").read_text())
    record["software"]["git_dirty"] = dirty
    (point / "record.json").write_text(json.dumps(record))


def measured(sweep):
    """The points that ran."""
    points = pl.read_parquet(sweep / "tables/points.parquet").filter(pl.col("status") != "not_run")
    return points["point_id"].sort().to_list()


def part_of(sweep, folder, keep):
    """The sweep with some of its points alone."""
    shutil.copytree(sweep, folder)
    for path in (folder / "tables").iterdir():
        frame = pl.read_parquet(path)
        frame.filter(pl.col("point_id").is_in(keep)).write_parquet(path)
    for path in (folder / "points").iterdir():
        if path.name not in keep:
            shutil.rmtree(path)
    return folder


def test_points_of_no_commit_are_refused(sweep, tmp_path, capsys):
    out, last = tmp_path / "set", measured(sweep)[-1]
    dirty = part_of(sweep, tmp_path / "dirty", measured(sweep))
    set_dirty(dirty / "points" / last, True)
    assert main(["publish", str(dirty), "--into", str(out)]) == 2 and not out.exists()
    assert capsys.readouterr().err == (
        f"nightsweep publish: 1 point measured with changes that no commit has, such as {last}: measure them again "
        "from a commit, or name them in set/left-out.csv\n"
    )
    assert main(["publish", str(sweep), "--into", str(out)]) == 0


def test_a_set_grows_by_points_that_it_has_not(sweep, tmp_path, capsys):
    ids = measured(sweep)
    out = tmp_path / "set"
    assert main(["publish", str(part_of(sweep, tmp_path / "a", ids[:3])), "--into", str(out)]) == 0
    (out / "LICENSE").write_text("Some licence\n\nIts text\n")
    (out / "README.md").write_text(f"# By hand\n\n{published_set.MARK}\n")
    assert main(["publish", str(sweep), "--into", str(out)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("set: 3 new points, 3 points in all")
    assert said[-1].endswith(f"set: {len(ids) - 3} new points, {len(ids)} points in all")
    before = {path: path.read_bytes() for path in out.rglob("*.parquet")}
    assert main(["publish", str(sweep), "--into", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"set: 0 new points, {len(ids)} points in all")
    assert all(path.read_bytes() == content for path, content in before.items())
    for name in tables.TABLES:
        source = pl.read_parquet(sweep / f"tables/{name}.parquet") if name != "remedies" else None
        frame = pl.read_parquet(out / f"tables/{name}.parquet")
        assert frame.schema == column.schema(tables.TABLES[name])
        if source is not None and "point_id" in source.columns:
            assert frame.height == source.filter(pl.col("point_id").is_in(ids)).height, name
    page = (out / "README.md").read_text()
    assert page.startswith("# By hand\n") and "`LICENSE`: Some licence." in page and "`step_ms_median`" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "set"]


def test_a_large_table_is_the_same_bytes_however_it_is_read(sweep, tmp_path):
    """Polars reads it in pieces, as many as cores and chance have it, where it has more rows than a piece."""
    published, out = PUBLISHED / "h200-2026-11-21/tables", tmp_path / "set"
    assert main(["publish", str(sweep), "--into", str(out)]) == 0
    ids = pl.read_parquet(out / "tables/points.parquet")["point_id"]
    few = [*KEYS["gpu_samples"], "power_instant_w"]  # of its columns: to pack them takes longest
    samples = pl.read_parquet(published / "gpu_samples.parquet", columns=few).head(150_000)
    samples = samples.with_columns(point_id=pl.lit(ids[0]))
    samples.write_parquet(out / "tables/gpu_samples.parquet")
    found = set()
    for _ in range(3):
        assert main(["publish", str(sweep), "--into", str(out)]) == 0
        found.add(hashlib.sha256((out / "tables/gpu_samples.parquet").read_bytes()).hexdigest())
    assert len(found) == 1


def test_a_set_tells_no_secret_and_its_search_fires(sweep, tmp_path, monkeypatch, capsys):
    out = tmp_path / "set"
    assert main(["publish", str(sweep), "--into", str(out)]) == 0
    for path in out.rglob("*"):
        content = repr(pl.read_parquet(path).to_dict(as_series=False)).encode() if path.suffix == ".parquet" else b""
        content += path.read_bytes() if path.is_file() else b""
        assert not [secret for secret in SECRETS if secret.encode() in content], path
    good = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (out / "README.md").write_text(f"Measured on {HOSTS[0]}.\n{published_set.MARK}\n")
    assert main(["publish", str(sweep), "--into", str(out)]) == 1
    assert "README.md: it still holds a name (host); nothing is published" in capsys.readouterr().err
    assert {path for path in out.rglob("*") if path.is_file()} == good.keys()
    monkeypatch.setattr(Anonymizer, "tree", lambda self, value, kinds: value)
    assert main(["publish", str(sweep), "--into", str(tmp_path / "other")]) == 1
    assert not (tmp_path / "other").exists()


def test_hosts_of_a_later_sweep_have_other_pseudonyms(sweep, tmp_path):
    *others, last = measured(sweep)
    out = tmp_path / "set"
    first = part_of(sweep, tmp_path / "a", others)
    assert main(["publish", str(first), "--into", str(out)]) == 0
    used = json.loads((out / "manifest.json").read_text())["pseudonyms"]
    assert main(["publish", str(sweep), "--into", str(out)]) == 0
    record = json.loads((out / f"points/{last}/record.json").read_text())
    numbers = [int(re.fullmatch(r"node(\d+)", host["hostname"])[1]) for host in record["hosts"]]
    assert used["host"] > 0 and min(numbers) > used["host"]
    assert all(int(host["gpus"][0]["uuid"].removeprefix("GPU-")) > used["gpu"] for host in record["hosts"])


def test_points_that_are_listed_are_left_out_also_later(sweep, tmp_path):
    first, second, *others = measured(sweep)
    out = tmp_path / "set"
    out.mkdir()
    (out / "left-out.csv").write_text(f"point_id,reason\n{first},disturbed\n")
    assert main(["publish", str(sweep), "--into", str(out)]) == 0
    assert set(pl.read_parquet(out / "tables/points.parquet")["point_id"]) == {second, *others}
    (out / "left-out.csv").write_text(f"point_id,reason\n{first},disturbed\n{second},disturbed\n")
    assert main(["publish", str(sweep), "--into", str(out)]) == 0
    for name in tables.TABLES:
        frame = pl.read_parquet(out / f"tables/{name}.parquet")
        assert not frame["point_id"].is_in([first, second]).any()
    assert "- 2: disturbed" in (out / "README.md").read_text()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda out: (out / "tables").mkdir(parents=True), "no data set; expected one that"),
        (
            lambda out: out.mkdir() or (out / "left-out.csv").write_text("point_id\nx\n"),
            "expected the columns point_id",
        ),
    ],
)
def test_what_is_no_set_is_left_as_it_is(make, says, sweep, tmp_path, capsys):
    make(tmp_path / "set")
    before = sorted(tmp_path.rglob("*"))
    assert main(["publish", str(sweep), "--into", str(tmp_path / "set")]) == 2
    assert says in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
    assert main(["publish", str(sweep), "--into", str(tmp_path / "set"), "--traces"]) == 2


@pytest.mark.parametrize("folder", sorted(PUBLISHED.iterdir()), ids=lambda folder: folder.name)
def test_published_sets_are_whole(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    for file in manifest["files"]:
        assert hashlib.sha256((folder / file["file"]).read_bytes()).hexdigest() == file["sha256"], file
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {file["file"] for file in manifest["files"]} | {"manifest.json"}
    points = pl.read_parquet(folder / "tables/points.parquet")
    assert set(points["point_id"]) == {path.name for path in (folder / "points").iterdir()}
    for name in tables.TABLES:
        frame = pl.read_parquet(folder / f"tables/{name}.parquet")
        assert frame["point_id"].is_in(points["point_id"].implode()).all()
        assert not frame.select(KEYS[name]).is_duplicated().any() or name in ("gpu_events", "activities", "timeline")
    assert published_set.left_out(folder).keys().isdisjoint(points["point_id"])
    if folder.name.startswith("h200-"):  # a set of one's own may have another licence
        assert (folder / "LICENSE").read_text().startswith("Creative Commons Attribution 4.0 International")


def test_a_set_is_drawn_to_the_same_bytes_by_any_number_of_processes(tmp_path, monkeypatch, capsys):
    whole = PUBLISHED / "h200-2026-11-21"
    points, trained = (pl.read_parquet(whole / f"tables/{name}.parquet") for name in ("points", "accuracy"))
    one_model = points.filter(pl.col("model") == "llama-1b")["point_id"]  # a report of all points takes longest
    folder = part_of(whole, tmp_path / "part", {*one_model, *trained["point_id"]})
    few = ("roofline", "switches", "failures", "accuracy")
    monkeypatch.setattr(families, "FAMILIES", {name: families.FAMILIES[name] for name in few})
    assert main(["figures", str(folder), "--out", str(tmp_path / "a")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert ": left out: " in said[-1] and draw.draw(folder / "tables", tmp_path / "b", processes=1) == said
    page = (tmp_path / "a/report.html").read_text()
    assert f"Figures left out ({len(said)})" in page and said[-1].replace(" left out:", "") in page
    (tmp_path / "a/report.html").unlink()
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert {"roofline.pdf", "switches-column.png", "supplement/accuracy.pdf"} <= {str(f) for f in files}
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


@pytest.mark.parametrize("page", [published_set, techniques])
@pytest.mark.parametrize("words", [[], ["nowhere"], ["."]])
def test_a_page_of_what_is_no_data_set_is_not_written(page, words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(techniques, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"^2$"):
        page.main(words)
    assert "error: " in capsys.readouterr().err.splitlines()[-1] and not list(tmp_path.iterdir())


def test_figures_of_what_is_no_results_get_a_line(tmp_path, capsys):
    assert main(["figures", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "points.parquet: no such file; expected the results of a sweep" in capsys.readouterr().err


def test_readings_have_four_digits_and_keep_them():
    values = [0.0, None, -12.3456, 249321234.7, 249299999.99999997, 9999.5, 99995.0, 1.23456e-7]
    found = pl.DataFrame({"w": values}).with_columns(published_set.rounded(pl.col("w")))
    assert found["w"].to_list() == [None if value is None else float(f"{value:.4g}") for value in values]
    assert found.with_columns(published_set.rounded(pl.col("w"))).equals(found)
