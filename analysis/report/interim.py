"""What a report that is written while its sweep runs says first: how far the sweep is."""

from __future__ import annotations

from dataclasses import dataclass

from nightsweep.analysis.sweep.labels import duration, plural


@dataclass(frozen=True)
class Interim:
    """A sweep under way.

    points: all of them; done: those with a record; failed: done and not ok; running: under way now; left_s: until the
    end, where that can be told; absent: done, but not in this report yet; at: when this was so; reload_s: how often a
    browser is to load the page again.
    """

    points: int
    done: int
    failed: int
    running: int
    left_s: float | None
    absent: int
    at: str
    reload_s: int

    def sentence(self) -> str:
        failed = f" ({self.failed} failed)" if self.failed else ""
        parts = [f"{self.done} of {plural(self.points, 'point')} done{failed}", f"{self.running} running"]
        parts += [f"about {duration(self.left_s)} to go"] if self.left_s is not None else []
        absent = f" {self.absent} of the points that are done will be in the next version." if self.absent else ""
        return f"{', '.join(parts)}, as of {self.at}.{absent} This page reloads every {self.reload_s} s."
