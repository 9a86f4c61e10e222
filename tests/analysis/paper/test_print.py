"""The figures to print, of the published set and of a sweep of four points: what is printed can be read."""

import itertools

import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from PIL import Image

from nightsweep.analysis.figures import style
from nightsweep.analysis.paper.families import FAMILIES
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tools import contact_sheet
from nightsweep.jobs.host.facts import ROOT
from tests.analysis.figures.made_up import made_up

PRINTED = [name for name, family in FAMILIES.items() if family.place == "main"]
THINNEST_PT = 0.5


@pytest.fixture(scope="module")
def published():
    return dataset.load(ROOT / "data/h200-2026-11-21/tables")


def lines_of(figure):
    """(width, artist) of everything that is drawn with a line."""
    for artist in figure.findobj(lambda one: one.get_visible()):
        if isinstance(artist, LineCollection):
            yield from ((width, artist) for width in artist.get_linewidths())
        elif isinstance(artist, Line2D):
            if artist.get_linestyle() != "None" and len(artist.get_xdata()):
                yield artist.get_linewidth(), artist
            if artist.get_marker() not in ("", "None", None) and len(artist.get_xdata()):
                yield artist.get_markeredgewidth(), artist
        elif isinstance(artist, Patch) and to_rgba(artist.get_edgecolor())[3] and artist.get_linewidth():
            yield artist.get_linewidth(), artist


def names_of(axes):
    """What names the values of each axis of a panel, within its limits."""
    for axis, shown, limits in (
        (axes.xaxis, "labelbottom", axes.get_xlim()),
        (axes.yaxis, "labelleft", axes.get_ylim()),
    ):
        low, high = sorted(limits)
        room = 1e-6 * (high - low)
        if axis.get_tick_params()[shown]:
            pairs = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
            yield [label for place, label in pairs if low - room <= place <= high + room and label.get_text()]


def check(figure):
    with style.context():
        style.settle(figure)
        assert figure.get_figheight() <= style.PAGE_IN
        for text in figure.findobj(lambda one: isinstance(one, Text) and one.get_visible() and one.get_text().strip()):
            assert text.get_fontsize() >= style.SMALLEST_PT, text
        for width, artist in lines_of(figure):
            assert width >= THINNEST_PT, (width, artist)
        for axes in figure.axes:
            own = [axes.xaxis.label, axes.yaxis.label, axes._left_title, *axes.texts]
            for labels in names_of(axes):
                own += labels
                boxes = [label.get_window_extent() for label in labels]
                for (one, box), (other, beside) in itertools.pairwise(zip(labels, boxes, strict=True)):
                    lower = min(box.y1, beside.y1) - max(box.y0, beside.y0) > 0.35 * min(box.height, beside.height)
                    assert not lower or box.x1 <= beside.x0 or beside.x1 <= box.x0, (one, other)
            for text in own:
                if text.get_text():
                    box = text.get_window_extent()
                    inside = box.x0 >= -1 and box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1
                    assert inside and box.y0 >= -1, text


def test_ten_figures_are_for_print():
    assert len(PRINTED) == 10


def test_a_contact_sheet_has_both_widths_in_colour_and_in_grey(tmp_path, capsys):
    with pytest.raises(SystemExit, match="1"):
        contact_sheet.main([str(tmp_path), "--out", str(tmp_path / "sheet.png")])
    assert "no figure to print; expected a folder that" in capsys.readouterr().err
    for name, width in (("scaling", 40), ("scaling-column", 20)):
        Image.new("RGB", (width, 30), style.VERMILION).save(tmp_path / f"{name}.png")
    contact_sheet.main([str(tmp_path), "--out", str(tmp_path / "sheet.png")])
    sheet = Image.open(tmp_path / "sheet.png")
    row = [sheet.getpixel((x, contact_sheet.GAP + 5)) for x in range(sheet.width)]
    vermilion, grey = (213, 94, 0), 3 * (Image.new("RGB", (1, 1), style.VERMILION).convert("L").getpixel((0, 0)),)
    assert (row.count(vermilion), row.count(grey)) == (30, 30)


@pytest.mark.parametrize("width_in", [style.TWO_COLUMNS_IN, style.ONE_COLUMN_IN])
@pytest.mark.parametrize("name", PRINTED)
def test_a_printed_figure_can_be_read(name, width_in, published):
    figure = FAMILIES[name].draw(FAMILIES[name].scope(published), width_in)
    assert figure.axes and figure.get_figwidth() == width_in
    check(figure)


def test_four_points_have_figures_that_can_be_read():
    """Those of a sweep as README has it: two settings with two values, one run each."""
    whole = made_up()
    points = whole["points"].filter(workload="image", repeat=0)
    tables = dataset.Tables({**whole.frames, "points": points})
    drawn = {name: FAMILIES[name].draw(tables, width_in) for name in PRINTED for width_in in [style.ONE_COLUMN_IN]}
    shown = [name for name, figure in drawn.items() if not figure.get_label()]
    assert shown == ["setting_effects", "switches", "scaling", "traced_steps", "causes", "held_time", "timeline"]
    for name in shown:
        check(drawn[name])
    assert all(figure.get_label().endswith(".") for name, figure in drawn.items() if name not in shown)
