"""The figures of the report: picture, caption, and the numbers behind it."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from PIL import Image

from nightsweep.analysis.figures import captions, scaling, style
from nightsweep.analysis.figures.family import Family
from nightsweep.analysis.paper import families
from nightsweep.analysis.paper.figures import traced_steps
from nightsweep.analysis.report import figure_data
from nightsweep.analysis.sweep import dataset

TEXT_PX = 12
"""Of the smallest text of a figure, where its picture scrolls in a box on a phone."""
LIVE = ("traced_steps", "scaling", "timeline", "remedies")
"""Figures that the page leaves out: it has interactive ones in their place."""


def figures(tables: dataset.Tables, folder: Path) -> list[dict[str, Any]]:
    """Every figure that was drawn, with its bytes inside."""
    files = {name: families.stem(name, folder).with_suffix(".png") for name in families.FAMILIES}
    return [
        {"id": name, "place": family.place, "title": family.title} | _content(family, files[name], family.scope(tables))
        for name, family in families.FAMILIES.items()
        if files[name].exists() and name not in LIVE
    ]


def sources(tables: dataset.Tables) -> dict[str, dict[str, Any]]:
    """The numbers behind those of LIVE that rest on more than the table of points: `id`, `rows`, and `csv`, a link."""
    own = {"traced_steps": traced_steps.FAMILY, "scaling": scaling.FAMILY}
    found = {name: figure_data.frame(family, family.scope(tables)) for name, family in own.items()}
    return {
        name: {"id": name, "rows": rows.height, "csv": figure_data.link(rows)}
        for name, rows in found.items()
        if rows is not None
    }


def missing_figures(folder: Path) -> list[str]:
    """A line for each figure that the tables have nothing to show of, or whose drawing failed."""
    path = folder / style.LEFT_OUT
    return path.read_text().splitlines() if path.exists() else []


def webp(file: Path) -> bytes:
    """The picture as lossless WebP: the same pixels in a third of the bytes."""
    packed = io.BytesIO()
    with Image.open(file) as picture:
        picture.save(packed, "WEBP", lossless=True, method=4)
    return packed.getvalue()


def _picture(file: Path) -> dict[str, Any]:
    """The bytes of a picture, and its size on a phone, CSS pixels."""
    with Image.open(file) as opened:
        scale = TEXT_PX / (style.SMALLEST_PT / 72 * style.DPI)
        width, height = (round(scale * pixels) for pixels in opened.size)
    return {"webp": base64.b64encode(webp(file)).decode(), "width": width, "height": height}


def _content(family: Family, file: Path, tables: dataset.Tables) -> dict[str, Any]:
    narrow = file.with_stem(f"{file.stem}{style.COLUMN}")
    text, reading, fixed = captions.parts(family, tables)
    rows = figure_data.frame(family, tables)
    return {
        "wide": _picture(file),
        "narrow": _picture(narrow) if narrow.exists() else None,
        "caption": text,
        "reading": reading,
        "fixed": fixed,
        "rows": 0 if rows is None else rows.height,
        "csv": "" if rows is None else figure_data.link(rows),
    }
