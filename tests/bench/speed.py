"""How fast traces become tables, beside `nsys stats -r nvtx_gpu_proj_sum`, which does one of the things that we do.

    make bench                                          # our own DDP export, tiled
    make bench BENCH="EXPORT.sqlite --copies 50 250 1000"

Every line is from the same run; nsys is left out where there is none. Peak memory is that of the process (VmHWM).
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.tile import tile

OWN = Path(__file__).parents[1] / "data/h200-ranks/ddp-r0.sqlite.gz"


def measured(command: list[str]) -> tuple[float, float]:
    """Seconds and peak MB of a command that must end well."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        assert process.stderr is not None
        sys.exit(f"{' '.join(command)}: {process.stderr.read().strip()}")
    return time.monotonic() - begin, usage.ru_maxrss / 1e3


def line(export: Path, copies: int, scratch: Path) -> str:
    tiled = scratch / f"tiled-{copies}.sqlite"
    rows = tile(export, tiled, copies)
    kernels, ranges = rows["CUPTI_ACTIVITY_KIND_KERNEL"], rows["NVTX_EVENTS"]
    ours = measured([sys.executable, "-m", "analysis.cli", "ingest", str(tiled), "--out", str(scratch / "out")])
    text = (
        f"{copies:>7} {kernels:>10,} {ranges:>11,} {tiled.stat().st_size / 1e6:>7.0f} {ours[0]:>9.1f} {ours[1]:>8.0f}"
    )
    if shutil.which("nsys"):
        command = ["nsys", "stats", "--quiet", "--force-export=false", "--report=nvtx_gpu_proj_sum", str(tiled)]
        theirs = measured(command)
        text += f" {theirs[0]:>9.1f} {theirs[1]:>8.0f} {theirs[0] / ours[0]:>7.1f}"
    tiled.unlink()
    return text


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.speed", description=__doc__)
    parser.add_argument("export", type=Path, nargs="?", help="SQLite export to tile (our own DDP run)")
    parser.add_argument("--copies", type=int, nargs="+", default=[50, 250], help="how many copies (50 250)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        export = args.export
        if export is None:
            export = scratch / "own.sqlite"
            export.write_bytes(gzip.decompress(OWN.read_bytes()))
        print(f"{'':>38} {'nightsweep ingest':>18} {'nsys stats':>18}")
        heads = f"{'copies':>7} {'kernels':>10} {'ranges':>11} {'MB':>7}"
        print(heads + f" {'s':>9} {'peak MB':>8}" * 2 + f" {'times':>7}")
        for copies in args.copies:
            print(line(export, copies, scratch), flush=True)


if __name__ == "__main__":
    main()
