"""What two other tools say of the labelled runs, beside `nightsweep diagnose`: rows of docs/diagnosis-peers.md.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install nsys-ai==0.3.0 HolisticTraceAnalysis==0.5.0
    PEERS=/tmp/peers/bin python -m tests.bench.side_by_side [--names a,b] [--scripts]

Rows of these runs (all of them) are made anew, the others stay; the notes on labels come from the labels. With
--scripts it is docs/diagnosis-peers-scripts.md: the runs of tests/labelled/scripts.yaml, whose traces HTA can read.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from nightsweep.analysis.diagnosis import verdict
from nightsweep.analysis.diagnosis.evidence import sources
from nightsweep.jobs.host.facts import ROOT
from tests.bench import kineto_copy
from tests.labelled import kept, packed, score, scripts
from tests.labelled.scripts import ScriptRun

PAGE = ROOT / "docs/diagnosis-peers.md"
SCRIPTS_PAGE = ROOT / "docs/diagnosis-peers-scripts.md"
SCRIPTS_HEAD = Path(__file__).with_name("side_by_side_scripts.head.md")
SHOWN = 3
SEVERITY = {"🔴": "critical", "🟡": "warning", "🟢": "info", "🔵": "info"}
HTA = """
import os, sys
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
from hta.trace_analysis import TraceAnalysis
files = {rank: path for rank, path in enumerate(sys.argv[1:])}
found = TraceAnalysis(trace_files=files)
parts = found.get_temporal_breakdown(visualize=False)
idle = found.get_idle_time_breakdown(ranks=list(files), visualize=False)[0]
print("TEMPORAL", parts.to_json(orient="records"))
print("IDLE", idle.groupby("idle_category")["idle_time"].sum().to_json())
"""


def exports(folder: Path) -> list[Path]:
    return sorted((folder / "traced").glob("trace-r*.sqlite"))


def ours(folder: Path) -> str:
    """The material causes, the largest first."""
    found = verdict.judge(sources.gather([folder])).as_json()
    causes = [c for c in found["causes"] if c["share"] >= 0.005][:SHOWN]
    told = [_cause(c) for c in causes]
    remarks = [c["kind"] for c in found["causes"] if c["kind"].startswith("missing_")]
    if found["healthy"]:
        text = f"**healthy** ({', '.join(told)})" if told else "**healthy**"
    else:
        text = "; ".join([f"**{told[0]}**", *told[1:]]) if told else "abstains"
    return text + "".join(f"; remark **{kind}**" for kind in remarks)


def _cause(cause: dict[str, Any]) -> str:
    rank = "" if cause["rank"] is None else f" of rank {cause['rank']}"
    return f"{cause['kind']}{rank} {cause['share']:.0%}"


def nsys_ai(folder: Path) -> str:
    """Its first finding, and how many there are."""
    if not exports(folder):
        return "no trace"
    command = [f"{os.environ['PEERS']}/nsys-ai", "skill", "run", "root_cause_matcher", str(exports(folder)[0])]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(rf"^({'|'.join(SEVERITY)}) (.+)$", text, re.MULTILINE)
    return f"**{found[0][1].strip()}** ({SEVERITY[found[0][0]]}; {len(found)})" if found else "nothing (0)"


def hta(folder: Path) -> str:
    """Idle, compute and other kernels in % of each rank's trace, and the idle time of all streams by its categories."""
    if not exports(folder):
        return "no trace"
    with tempfile.TemporaryDirectory() as copies:
        files = []
        for rank, export in enumerate(exports(folder)):
            files.append(f"{copies}/rank{rank}.json.gz")
            kineto_copy.write(export, Path(files[-1]), rank, len(exports(folder)))
        return hta_of(files)


def hta_of(files: list[str]) -> str:
    """The same of Kineto traces, by rank."""
    command = [f"{os.environ['PEERS']}/python", "-c", HTA, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"fails: {done.stderr.strip().splitlines()[-1][:80]}"
    lines = done.stdout.splitlines()
    told = {
        line.split()[0]: json.loads(line.split(maxsplit=1)[1]) for line in lines if line.startswith(("TEMP", "IDLE"))
    }
    columns = ("idle_time_pctg", "compute_time_pctg", "non_compute_time_pctg")
    parts = [" / ".join(f"{row[column]:.0f}" for column in columns) for row in told["TEMPORAL"]]
    if len(parts) > 1:
        parts = [f"rank {rank}: {part}" for rank, part in enumerate(parts)]
    total = sum(told["IDLE"].values()) or 1.0
    idle = [(name, time / total) for name, time in sorted(told["IDLE"].items(), key=lambda item: -item[1])]
    return "; ".join([*parts, ", ".join(f"{name} {share * 100:.0f} %" for name, share in idle if share >= 0.005)])


def row(name: str) -> str:
    label = kept.label(name)
    with tempfile.TemporaryDirectory() as folder:
        point = kept.unpacked(name, Path(folder))
        answers = [ours(point), nsys_ai(point), hta(point)]
    kinds = ", ".join(label["kinds"]) or "healthy"
    cells = [f"{name} ({label['half']})", kinds + (" *" if "corrected" in label else ""), *answers]
    return f"| {' | '.join(cells)} |"


def script_row(run: ScriptRun, fixes: dict[str, float]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        point = packed.unpacked(score.KEPT / run.name, Path(folder))
        answers = [ours(point), hta_of(sorted(map(str, (point / "traced").glob("trace-r*"))))]
    gave = f"{fixes[run.name]:.0%}" if run.name in fixes else ""
    kinds = ", ".join(run.kinds) or "healthy"
    return f"| {run.name} ({run.half}) | {kinds}{' (void)' if run.void else ''} | {gave} | {' | '.join(answers)} |"


def write_scripts(names: list[str] | None) -> None:
    """docs/diagnosis-peers-scripts.md."""
    fixes, runs = score.measured(), [run for run in scripts.load() if (score.KEPT / run.name).is_dir()]
    old = SCRIPTS_PAGE.read_text().rpartition("|---|---|---|---|---|\n")[2]
    rows = {line.split()[1]: line for line in old.splitlines()}
    for run in runs:
        if names is None or run.name in names:
            rows[run.name] = script_row(run, fixes)
            print(rows[run.name], flush=True)
    table = "\n".join(rows[run.name] for run in runs if run.name in rows)
    SCRIPTS_PAGE.write_text(SCRIPTS_HEAD.read_text() + table + "\n")


def place(name: str) -> tuple[bool, str]:
    return kept.label(name)["half"] != "tune", name


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.side_by_side", description="Rows of docs/diagnosis-peers.md.")
    parser.add_argument("--names", help="these runs only, with commas between them")
    parser.add_argument("--scripts", action="store_true", help="the runs of tests/labelled/scripts.yaml")
    args = parser.parse_args()
    names = args.names.split(",") if args.names else None
    if "PEERS" not in os.environ:
        parser.error("PEERS is not set; expected the folder with the programs of the peers' environment")
    if args.scripts:
        write_scripts(names)
        return
    head, _, rest = PAGE.read_text().partition("|---|---|---|---|---|\n")
    rows = {line.split()[1]: line for line in rest.splitlines() if line.startswith("| ")}
    for name in names or kept.names():
        rows[name] = row(name)
        print(rows[name], flush=True)
    there = sorted(kept.names(), key=place)
    corrected = [(name, label) for name in kept.names() if "corrected" in (label := kept.label(name))]
    notes = [
        f"- `{name}`, meant to be {', '.join(label['intended']) or 'healthy'}: {label['corrected']}."
        for name, label in corrected
    ]
    table = "\n".join(rows[name] for name in there if name in rows)
    starred = "\\* The injection did not do what it should; the label is what the trace says:"
    PAGE.write_text(f"{head}|---|---|---|---|---|\n{table}\n\n{starred}\n\n" + "\n".join(notes) + "\n")


if __name__ == "__main__":
    main()
