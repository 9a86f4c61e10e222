"""`nightsweep watch RESULTS`: a running sweep as text of 80 columns (up to 100 where there is room), or as JSON.

A line a sweep; for each point that runs its id, look, step of the slowest rank, time of a step, last sign of life and
the settings that vary; a line a GPU (`SM`: share of time with a busy SM; `util`: NVML's utilisation, where that is all
there is); the newest events. At a terminal it redraws itself, what needs attention first. state.py describes the JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import sys
import time
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nightsweep.analysis.sweep.labels import duration, label, plural
from nightsweep.analysis.tools.watch.report_keeper import ReportKeeper
from nightsweep.analysis.tools.watch.running import Event, Gpu
from nightsweep.analysis.tools.watch.state import Reader, Running, State, SweepState
from nightsweep.jobs.record.input_error import InputError

WIDEST, NARROWEST = 100, 20
GPU_COLUMNS = 64  # of a GPU's line, without its host
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the alternate screen, no cursor; and back
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
STYLES = {"": "", "bold": "\x1b[1m", "red": "\x1b[31m"}


@dataclass(frozen=True)
class Line:
    text: str
    style: str = ""


Block = tuple[int, list[Line]]
"""A point's lines, and the number of its sweep."""


def columns(text: str) -> int:
    """Columns that a text takes at a terminal."""
    if text.isascii():
        return len(text)
    marks = sum(unicodedata.category(c) in ("Mn", "Me") for c in text)
    return len(text) - marks + sum(unicodedata.east_asian_width(c) in "WF" for c in text)


def cut(text: str, width: int) -> str:
    """The text in at most so many columns, without anything that a terminal would obey."""
    clean = "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)
    if columns(clean) <= width:
        return clean
    kept, room = "", width - 2
    for character in clean:
        room -= columns(character)
        if room < 0:
            break
        kept += character
    return kept.rstrip() + ".."


def pad(text: str, width: int) -> str:
    short = cut(text, width)
    return short + " " * (width - columns(short))


def point_line(point: Running) -> Line:
    step = "" if point.step is None or point.phase != "step" else f" {point.step}"
    look = "control" if point.look.startswith("cost-") else point.look
    what = f"{look} {point.phase or ''}{step}" + (f"/{point.steps}" if step and point.steps else "")
    ms = "" if point.step_ms is None else f"{point.step_ms:.{0 if point.step_ms >= 100 else 1}f} ms/step"
    age = duration(point.age_s)
    seen = f"silent {age}" if point.silent else f"{age} ago"
    text = (
        f"  {pad(point.point_id, 12)} {cut(what, 24):<18} {ms:>11} {seen:>8}  {label(point.settings, point.settings)}"
    )
    return Line(text.rstrip(), "red" if point.silent else "")


def show_text(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else format(value / scale, form)


def gpu_line(gpu: Gpu, host_width: int) -> Line:
    sm, util = gpu.sm_active_percent, gpu.utilization_percent
    kind, busy = ("SM", sm) if sm is not None else ("util", util)
    memory = f"{show_text(gpu.memory_used_bytes, '.1f', 2**30)}/{show_text(gpu.memory_total_bytes, '.1f', 2**30)} GiB"
    flag = f"LOW {duration(gpu.low_s or 0)}" if gpu.low else f"stale {duration(gpu.age_s)}" if gpu.stale else ""
    text = f"    {pad(gpu.host, host_width)} gpu {show_text(gpu.gpu, '.0f'):<2} {kind:>4} {show_text(busy, '.1f'):>5} %"
    return Line(f"{text} {show_text(gpu.power_w, '.0f'):>4} W  {memory:>15}  {flag}".rstrip(), "red" if gpu.low else "")


def event_line(event: Event, now_ns: int) -> Line:
    gpu = "" if event.gpu is None or f"GPU {event.gpu}" in event.message else f" gpu {event.gpu}"
    age = duration(max(0.0, (now_ns - event.t_ns) / 1e9))
    return Line(f"    {age} ago, {event.host}{gpu}: {event.kind}: {event.message}")


def block(point: Running, now_ns: int, width: int) -> list[Line]:
    """All lines of a point; GPUs that are low come first, in case the rest does not fit."""
    hosts = min(max((len(gpu.host) for gpu in point.gpus), default=0), max(6, width - GPU_COLUMNS))
    gpus = [gpu_line(gpu, hosts) for gpu in sorted(point.gpus, key=lambda gpu: not gpu.low)]
    return [point_line(point), *(event_line(event, now_ns) for event in point.events), *gpus]


def head(sweep: SweepState) -> Line:
    failed = f", {sweep.failed} failed" if sweep.failed else ""
    running = f" ({sweep.running} running)" if sweep.running else ""
    to_go = f", about {duration(sweep.left_s)} to go" if sweep.left_s is not None else ""
    counts = f"{sweep.done}/{sweep.points} points done{failed}, {sweep.left} left{running}"
    return Line(f"{sweep.name}: {counts}{to_go}", "bold")


def urgency(point: Running) -> tuple[bool, bool]:
    """Sorts points that waste GPUs first, then those of which something was reported."""
    return not (point.silent or any(gpu.low for gpu in point.gpus)), not point.events


def fit(blocks: list[Block], room: int) -> list[Block]:
    """The first blocks that there is room for; the last of them may be cut short."""
    kept: list[Block] = []
    for number, lines in blocks:
        over = len(lines) - room
        if over > 0 and room < 2:
            break
        short = [*lines[: room - 1], Line(f"    ... and {over + 1} more lines")] if over > 0 else lines
        kept.append((number, short))
        room -= len(short)
    return kept


def page(state: State, width: int, height: int | None = None) -> list[Line]:
    """The lines of a state, cut to the width; at most `height` of them."""
    sweeps = sorted(state.sweeps, key=lambda sweep: not sweep.running)
    ranked = [(number, point) for number, sweep in enumerate(sweeps) for point in sweep.running_points]
    ranked.sort(key=lambda each: urgency(each[1]))
    blocks = [(number, block(point, state.t_ns, width)) for number, point in ranked]
    heads, rest = [head(sweep) for sweep in sweeps], []
    if height is not None and len(heads) + sum(len(lines) for _, lines in blocks) > height:
        heads = heads[: max(1, height // 2)]
        hidden = len(sweeps) - len(heads)
        rest = [Line(f"... and {plural(hidden, 'more sweep')}")] if hidden else []
        blocks = fit([each for each in blocks if each[0] < len(heads)], height - len(heads) - len(rest) - 1)
        more = len(ranked) - len(blocks)
        rest += [Line(f"... and {plural(more, 'more running point')}")] if more else []
    lines = []
    for number, first in enumerate(heads):
        lines += [first, *(line for mine, block in blocks if mine == number for line in block)]
    return [Line(cut(line.text, width), line.style) for line in [*lines, *rest][:height]]


def at_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def render(state: State, as_json: bool, once: bool, note: str = "") -> list[str]:
    """A state as it is printed, with a last line where there is something to note."""
    if as_json:
        return [json.dumps(msgspec.to_builtins(state), indent=2 if once else None)]
    size = shutil.get_terminal_size()
    width = min(max(size.columns, NARROWEST), WIDEST)
    notes = [Line(cut(note, width))] if note else []
    lines = [*page(state, width, size.lines - len(notes) if at_terminal() else None), *notes]
    colours = at_terminal() and not os.environ.get("NO_COLOR")
    return [f"{STYLES[x.style]}{x.text}\x1b[0m" if x.style and colours else x.text for x in lines]


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """SIGTERM ends the program as Ctrl-C does: what it holds is given back."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def screen() -> Iterator[None]:
    """The terminal's other screen, given back however this ends."""
    try:
        sys.stdout.write(ENTER)
        yield
    finally:
        with contextlib.suppress(OSError):  # the terminal is gone
            sys.stdout.write(LEAVE)
            sys.stdout.flush()


def frame(lines: list[str]) -> str:
    """The lines in place of what was drawn before. Each place is cleared before it is written: after a line as wide as
    the terminal, the cursor would still stand on its last character."""
    clear = [REST_OF_LINE] * (len(lines) - 1) + [REST_OF_SCREEN]
    return HOME + "\r\n".join(map("".join, zip(clear, lines, strict=True)))


def follow(results: Path, once: bool, as_json: bool, interval: float, report: Path | None = None) -> int:
    """`nightsweep watch`, until all points are done or Ctrl-C; the exit status. `report`: file of the interim report.
    Raises InputError."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a label may hold what the terminal's encoding does not
    drawn = at_terminal() and not as_json
    reader = Reader(results)
    try:
        with orderly_end(), keeper_of(reader, report) as keeper:
            state = reader.read()
            with screen() if drawn and not once and not state.finished else contextlib.nullcontext():
                while not (once or state.finished):
                    if keeper:
                        keeper.update(state.sweeps[0])
                    lines = render(state, as_json, once, keeper.line() if keeper else "")
                    sys.stdout.write(frame(lines) if drawn else "\n".join(lines) + ("\n" if as_json else "\n\n"))
                    sys.stdout.flush()
                    time.sleep(interval)
                    state = reader.read()
            print("\n".join(render(state, as_json, once)), flush=True)
            if keeper:
                keeper.finish()
    except KeyboardInterrupt:
        if once:
            raise
    return 0


def keeper_of(reader: Reader, report: Path | None) -> ReportKeeper | contextlib.nullcontext[None]:
    """Who keeps the report; nobody where none is asked for. Raises InputError."""
    if report is None:
        return contextlib.nullcontext()
    folder, *others = reader.folders()
    if others:
        raise InputError(f"{reader.results}: {len(others) + 1} sweeps; a report is of one: expected results/SWEEP")
    return ReportKeeper(folder, report)
