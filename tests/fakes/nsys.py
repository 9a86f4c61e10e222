"""For tests of tracers: a program nsys that is a shell script, and small points."""

import os
import time

import psutil

from nightsweep.jobs.point.point import complete

VERSION = "NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0"
LEAVES_A_FILE = 'while [ "$1" != -o ]; do shift; done; : > "$2"'
# Like nsys' agent: a session of its own, which it takes a moment to get, and a command line with the test's folder.
AGENT = 'setsid tail -f "$0" > /dev/null 2>&1 &\nsleep 0.3\n'
HANGS = AGENT + "wait"
NANO = {"workload": "llm", "model": "llama-nano", "seq_len": 32, "micro_batch": 1, "ranks_per_node": 2}
QUICK = {"warmup_steps": 1, "timed_steps": 2, "traced_steps": 2}


def stand_in(tmp_path, monkeypatch, *, version=f"echo '{VERSION}'", profile=LEAVES_A_FILE, export=LEAVES_A_FILE):
    """A program nsys that does this for each of its commands, first on the PATH."""
    script = tmp_path / "bin/nsys"
    script.parent.mkdir()
    cases = {"--version": version, "profile": profile, "export": export}
    body = "".join(f"{name})\n{commands}\n;;\n" for name, commands in cases.items())
    script.write_text(f'#!/bin/sh\necho "$@" >> {script.parent}/calls\ncase "$1" in\n{body}esac\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return script


def left_behind(tmp_path):
    """Command lines of processes that name the test's folder; a killed one may take a moment to go."""
    for _ in range(20):
        lines = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
        found = [line for line in lines if f"{tmp_path}/" in line]
        if not found:
            break
        time.sleep(0.1)
    return found


def nano(**settings):
    return complete(NANO | QUICK | settings)
