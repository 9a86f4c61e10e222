"""Faulty traces through `nightsweep ingest` and `diagnose`, and random databases through both readers of SQLite.

    make fuzz                                  # 500 traces, 2,000 databases, seeds from 0
    make fuzz FUZZ="--traces 5000 --first 500"

A trace is read whole, read in part with a line for each problem, or refused in one line: without a traceback, within a
minute and 4 GiB. Where SQLite finds a file sound, both readers give the same. Each failure is told with its seed, which
makes the same trace again.
"""

from __future__ import annotations

import argparse
import collections
import json
import queue
import subprocess
import sys
import threading
from typing import IO

from tests.fuzz import databases

MOST_S = 60


def lines_of(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def try_traces(first: int, count: int) -> collections.Counter[str]:
    """Number of traces by their end. A worker that hangs or dies is replaced after the trace that it died of."""
    ends: collections.Counter[str] = collections.Counter()
    seed, last = first, first + count
    while seed < last:
        command = [sys.executable, "-m", "tests.fuzz.worker", str(seed), str(last - seed)]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=lines_of, args=(worker.stdout, lines), daemon=True).start()
        while seed < last:
            try:
                line = lines.get(timeout=MOST_S)
            except queue.Empty:
                line = json.dumps({"end": "broken", "what": f"no end after {MOST_S} s"})
                worker.kill()
            if line is None:
                line = json.dumps({"end": "broken", "what": f"the process ended with status {worker.wait()}"})
            found = json.loads(line)
            ends[found["end"]] += 1
            if found["end"] == "broken":
                print(f"trace {seed}: {found['what']}", flush=True)
            seed += 1
            if worker.poll() is not None and lines.empty():
                break
        worker.wait()
    return ends


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--traces", type=int, default=500)
    parser.add_argument("--databases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    given = parser.parse_args()
    ends = try_traces(given.first, given.traces)
    print(f"{given.traces} traces: {dict(sorted(ends.items()))}")
    wrong = [line for seed in range(given.first, given.first + given.databases) if (line := databases.attempt(seed))]
    print("\n".join(wrong[:20]))
    print(f"{given.databases} databases: {len(wrong)} wrong")
    return 1 if wrong or ends["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
