"""What the Snakefile needs of the Python side: one driver at a time, the list of points on disk, the last lines."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pickle
import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

from nightsweep.jobs.host import private
from nightsweep.jobs.host.cache import try_lock
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.record.json_files import read_json, write_json
from nightsweep.jobs.record.record import Record, ending
from nightsweep.jobs.record.whole_file import write_bytes
from nightsweep.jobs.sweep import batches, chunks, code, design, rounds
from nightsweep.jobs.sweep.pairs import Pair
from nightsweep.jobs.sweep.sweep import Sweep

AS_READ = ".sweep/as_read.pickle"
"""Under results/SWEEP: the sweep as its latest driver read it, for jobs of a cluster."""
LEAST_BYTES = 1 << 20
MOST_LINES = 20
"""Points that the summary names, of those that are not ok and of those that could not be analysed: a screen."""


def tell_full_disk(folder: Path) -> str:
    """A line where no space is left; empty otherwise. A log on that disk could not say it."""
    full = folder.exists() and shutil.disk_usage(folder).free < LEAST_BYTES
    return f"{folder.resolve()}: no space left on the disk" if full else ""


def as_read(results: Path) -> Sweep | None:
    """The sweep as its latest driver read it; None where there was none, where it had other code, or where others may
    write to the file."""
    path = results / AS_READ
    try:
        private.check(path.parent)
        shape, found = pickle.loads(path.read_bytes())
    except Exception:  # what another version has written may lead to any
        return None
    return found if shape == _shape() else None


def _shape() -> list[str]:
    """The fields that a sweep and its points have in this version."""
    return [field.name for kind in (Sweep, Point, Pair, design.Design) for field in dataclasses.fields(kind)]


def take_lock(results: Path) -> IO[str]:
    """The lock of whoever changes results/SWEEP, held until it is closed. Raises InputError where another has it."""
    lock = (results / ".driver").open("w")
    if not try_lock(lock.fileno()):
        lock.close()
        raise InputError(f"{results}: another Nightsweep is at work on these results")
    return lock


@dataclass
class Run:
    """One call of Snakemake on the results of a sweep."""

    folder: Path
    sweep: Sweep
    batch_min: float = 0.0
    """How long jobs that run several points may be (batches.py)."""
    lock: IO[str] | None = field(default=None, init=False)
    all_ok: bool = field(default=True, init=False)
    """As the last summary found it."""
    began_ns: int = field(default=0, init=False)
    """When it took the lock: what is older is of an earlier run."""
    ended: bool = field(default=False, init=False)
    """Whether the exit status was set: Snakemake, and then logging, close the logger that sets it."""
    latest: ClassVar[Run | None] = None

    def __post_init__(self) -> None:
        """Raises FormatError where the file of a round cannot be read: nothing is planned without its points."""
        Run.latest = self
        for path in self.round_files():
            rounds.ids(path)

    def begin(self, executor: object) -> None:
        """Before the first job: keep other drivers off these results, and write down the points.

        Raises SystemExit with a line when another driver is at work, the results are somebody else's, nothing can be
        written, or the settings of the executor lack the hook by which lost points get a record. Unlike Snakemake's own
        lock, this one ends with its driver, however that ends.
        """
        if getattr(executor, "hook", "") is None:
            raise SystemExit(
                "the profile lacks `submitit-hook: nightsweep.jobs.slurm.point_jobs:PointJobs` (see profiles/slurm)"
            )
        try:
            self._begin()
        except (private.NotPrivate, InputError) as error:
            raise SystemExit(str(error)) from None
        except OSError as error:
            raise SystemExit(tell_full_disk(self.folder) or f"{self.folder}: {error.strerror}") from None

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        private.check_owner(self.folder)  # the files of rounds name what is run
        self.lock = take_lock(self.folder)
        self.began_ns = time.time_ns()
        files = code.files_of(self.sweep.points)
        content = {
            "name": self.sweep.name,
            "alert": dataclasses.asdict(self.sweep.alert),
            "points": [{"point_id": point.id, "settings": point.settings()} for point in self.sweep.points],
        } | self._design()
        if files:
            content["files"] = files
        path = self.folder / "sweep.json"
        if read_json(path, dict) != content:  # left alone when it is right, so that nothing is rebuilt for its date
            earlier = read_json(path, rounds.PointList)
            if earlier and (names := code.name_changed(earlier.files, files)):
                print(f"{names} changed: points are new, and `nightsweep orphans` lists the earlier", file=sys.stderr)
            elif earlier and earlier.points and self.own.keys().isdisjoint(one.point_id for one in earlier.points):
                print(self._tell_others(path, [listed.point_id for listed in earlier.points]), file=sys.stderr)
            write_json(path, content)
        with contextlib.suppress(private.NotPrivate, OSError):  # jobs read the file again then
            (self.folder / AS_READ).unlink(missing_ok=True)
            private.make((self.folder / AS_READ).parent)
            write_bytes(self.folder / AS_READ, pickle.dumps((_shape(), self.sweep)))

    def _tell_others(self, path: Path, earlier: list[str]) -> str:
        """That a list of points is replaced by one that has none of them, and what becomes of those measured."""
        measured = sum(self.record_path(point_id).exists() for point_id in earlier)
        are = "is" if measured == 1 else "are"
        are_kept = f"{measured} of them {are} measured and kept" if measured else "none of them was measured"
        return (
            f"{path} listed {len(earlier)} other point{'s' * (len(earlier) != 1)}, of another preset or of a sweep "
            f"with the same name: {are_kept}, and the tables are made of this sweep's alone"
        )

    def _design(self) -> dict[str, Any]:
        """What pairs are compared by, and what the rounds of repeats go by, where there are any."""
        shown = [pair for pair in self.sweep.pairs if pair.not_shown is None]
        joined = zip(shown, design.pair_ids(shown), strict=True)
        pairs = [{"name": pair.name, "without": one, "with": other} for pair, (one, other) in joined]
        precision = self.sweep.design.precision
        return ({"pairs": pairs} if pairs else {}) | (
            {"precision": dataclasses.asdict(precision)} if precision is not None else {}
        )

    @functools.cached_property
    def own(self) -> dict[str, Point]:
        """The sweep's points by id, without those that rounds add."""
        return {point.id: point for point in self.sweep.points}

    @functools.cached_property
    def batches(self) -> list[tuple[Point, ...]]:
        """The points that one job runs, of each job that runs several (batches.py)."""
        return batches.batches(self.sweep.points, self.sweep.pairs, self.sweep.design, self.batch_min)

    @functools.cached_property
    def leaders(self) -> dict[str, str]:
        """Of points that the job of another one runs, that one."""
        return design.leaders(design.led(self.batches, lambda point_id: self.record_path(point_id).exists()))

    @functools.cached_property
    def beside(self) -> dict[str, tuple[Point, ...]]:
        """The batch of each point that is in one."""
        return {point.id: batch for batch in self.batches for point in batch}

    def queue(self, point_id: str) -> list[str]:
        """Ids of the points that a point's job runs, itself first, whichever leads them by the records that there are
        now: a job of a cluster reads the sweep again, and must run what its driver had planned."""
        return [point_id, *(point.id for point in self.beside.get(point_id, ()) if point.id != point_id)]

    def minutes(self, point_id: str) -> int:
        """Wall time of a point's job."""
        queue = self.beside.get(point_id, (self.point(point_id),))
        return batches.minutes(queue, self.sweep.resources.timeout_min, self.batch_min)

    def point(self, point_id: str) -> Point:
        """A point of the sweep, or of a round."""
        return self.own.get(point_id) or rounds.load(self.holder(point_id)).job(point_id).point()

    def holder(self, point_id: str) -> Path:
        """The file in which jobs/launch/launch.py finds the point. Of the sweep's own: sweep.json, which may not be
        yet."""
        return self.folder / "sweep.json" if point_id in self.own else rounds.holder(self.round_files(), point_id)

    def repeat_files(self) -> list[Path]:
        """Files of the rounds of repeats so far that count for the sweep as it is now; sweep.json may not be yet."""
        precision = self.sweep.design.precision
        return rounds.files(self.folder, precision.folder) if precision else []

    def round_files(self) -> list[Path]:
        """Those of remedies, too."""
        return [*self.repeat_files(), *rounds.files(self.folder, rounds.REMEDIES)]

    def started(self, upto: int | None = None) -> list[str]:
        """Ids of the sweep's own points and of the starts that rounds added, or the first ones."""
        added = [point_id for path in self.repeat_files()[:upto] for point_id in rounds.ids(path)]
        return list(dict.fromkeys([*self.own, *added]))

    @functools.cached_property
    def in_order(self) -> list[str]:
        """Ids of the sweep's own points, as they come to run."""
        return sorted(self.own, key=self.priority, reverse=True)

    @functools.cached_property
    def places(self) -> dict[str, int]:
        """The place of each of the sweep's own points in the order of the file."""
        return {point_id: place for place, point_id in enumerate(self.own)}

    def priority(self, point_id: str) -> float:
        """Of a point's job, 0 to 1: the larger one runs first. Snakemake chooses freely among equal ones, so without
        a seed they fall in the order of the file, to 0 of what rounds add."""
        if self.sweep.design.seed is not None:
            return self.sweep.design.draw(point_id)
        return 1 - self.places.get(point_id, len(self.places)) / len(self.places)

    def chunks(self, repeats: int | None = None, remedies: int | None = None) -> dict[str, tuple[str, ...]]:
        """The points whose tables are made together (chunks.py), by the chunk's name: of the sweep's own points, and of
        the first rounds of repeats and of remedies. Without `remedies`, of all of those so far: what was measured."""
        lists = {"points": self.in_order}
        for path in self.repeat_files()[:repeats]:
            lists[f"{path.parent.name}-{path.stem}"] = rounds.ids(path)
        for path in rounds.files(self.folder, rounds.REMEDIES)[:remedies]:
            ids = rounds.ids(path)
            measured = ids if remedies is not None else [i for i in ids if self.record_path(i).exists()]
            lists[f"{path.parent.name}-{path.stem}"] = measured
        return chunks.divide(lists)

    def record_path(self, point_id: str) -> Path:
        """Where a point's record is, or will be."""
        return self.folder / "points" / point_id / "record.json"

    def conclude(self) -> None:
        """After the last job. Raises SystemExit, so that Snakemake ends with status 1, where a point is not ok."""
        self.summarize()
        self.end()

    def end(self) -> None:
        """Raise SystemExit, once, where a point is not ok."""
        if not self.all_ok and not self.ended:
            self.ended = True
            raise SystemExit(1)

    def summarize(self) -> None:
        """Print how the points ended, what failed, where the report is."""
        points = [*dict.fromkeys([*self.started(), *rounds.added_ids(self.folder, rounds.REMEDIES)])]
        records = {point: read_json(self.record_path(point), Record) for point in points}
        bad = {point: record for point, record in records.items() if record and record.status != "ok"}
        unread = [point for point, record in records.items() if not record and self.record_path(point).exists()]
        unrun = sum(record is None for record in records.values()) - len(unread)
        good = len(records) - len(bad) - len(unread) - unrun
        unclear = chunks.problems(self.folder / "derived", self.chunks())
        self.all_ok = good == len(records) and not unclear
        print(f"{good} of {len(records)} points ok", file=sys.stderr)
        _list(f"{point} {ending(record)}" for point, record in bad.items())
        _list(f"{point} {why}" for point, why in unclear.items())
        if unread:
            print(
                f"  {len(unread)} with a record.json that cannot be read; `nightsweep retry` sets it aside",
                file=sys.stderr,
            )
        if unrun:
            print(f"  {unrun} not run; the same command runs them", file=sys.stderr)
        if line := tell_full_disk(self.folder):
            print(line, file=sys.stderr)
        page = self.folder / "report.html"
        if page.exists():
            of = "" if page.stat().st_mtime_ns >= self.began_ns else " (of an earlier run)"
            print(f"report: {page.resolve()}{of}", file=sys.stderr)


def _list(lines: Iterable[str]) -> None:
    every = list(lines)
    for line in every[:MOST_LINES]:
        print(f"  {line}", file=sys.stderr)
    if len(every) > MOST_LINES:
        print(f"  and {len(every) - MOST_LINES} more", file=sys.stderr)
