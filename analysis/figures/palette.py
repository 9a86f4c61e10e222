"""Colours and hatches of values of settings: the same value looks the same in every figure."""

from __future__ import annotations

from typing import Any

from nightsweep.analysis.figures import style

COLOURS: dict[str, dict[Any, str]] = {
    "strategy": dict(style.STRATEGY_COLOURS),
    "precision": dict(style.PRECISION_COLOURS),
    "layout": {"nchw": style.BLUE, "nhwc": style.VERMILION, "mixed": style.GREY},
    "loader": {"torch": style.BLUE, "mmap": style.ORANGE, "dali": style.GREEN, "device": style.GREY},
    "pin_memory": {False: style.GREY, True: style.GREEN},
    "method": {
        "full": style.BLACK,
        "lora": style.BLUE,
        "qlora": style.SKY,
        "dpo": style.VERMILION,
        "dpo_lora": style.ORANGE,
        "dpo_qlora": style.BROWN,
        "qat": style.PURPLE,
    },
    "direction": {"HtoD": style.BLUE, "DtoH": style.ORANGE, "DtoD": style.GREY, "PtoP": style.GREEN},
    "call": {
        "launches": style.SKY,
        "synchronisation": style.VERMILION,
        "copies": style.PART_COLOURS["copies"],
        "other calls": style.GREY,
    },
    "verdict": {
        "supported": style.GREEN,
        "contradicted": style.VERMILION,
        "inconclusive": style.ORANGE,
        "not tested": style.GREY,
        "for information": style.BLACK,
    },
}
"""By setting, or by what a trace or a verdict tells apart: value -> colour."""
# Dark to light and even in grey (cividis), for numbers.
_ORDERED = ("#00224E", "#35456C", "#666970", "#948E77", "#C8B866")
HATCHES = ("", "////", "\\\\\\\\", "....", "xxxx", "----", "||||")


def fill_style(name: str, value: Any, levels: list[Any]) -> tuple[str, str]:
    """Colour and hatch of a value. `levels`: all values that the figure shows, which place a number."""
    known = COLOURS.get(name)
    if known is None:
        place = levels.index(value)
        return _ORDERED[place * (len(_ORDERED) - 1) // max(1, len(levels) - 1)], HATCHES[place % len(HATCHES)]
    return known.get(value, style.GREY), HATCHES[list(known).index(value) % len(HATCHES) if value in known else 0]
