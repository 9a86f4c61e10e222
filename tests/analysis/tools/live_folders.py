"""Results folders of sweeps under way, for the tests of `nightsweep watch`."""

import json
import os
import time

from nightsweep.analysis.tools.watch import view
from nightsweep.analysis.tools.watch.state import Reader
from nightsweep.jobs.record.json_files import write_json

GIB = 2**30
BASE = {"workload": "image", "model": "resnet50", "warmup_steps": 5, "timed_steps": 20, "traced_steps": 3}


def make_sweep(results, number, name="s", **settings):
    """A sweep of so many points that differ in their micro batch; its points' folders, none of them there yet."""
    ids = [f"{index:012x}" for index in range(number)]
    points = [{"point_id": i, "settings": {**BASE, "micro_batch": n, **settings}} for n, i in enumerate(ids)]
    (results / name).mkdir(parents=True)
    write_json(results / name / "sweep.json", {"name": name, "points": points})
    return [results / name / "points" / i for i in ids]


def aged(path, text, age=0.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (time.time() - age,) * 2)
    return path


def record(point, status="ok", age=0.0):
    aged(point / "record.json", json.dumps({"status": status}), age)


def beats(point, *texts, look="timed.1", age=0.0):
    for rank, text in enumerate(texts):
        aged(point / look / f"rank{rank}.heartbeat", text + "\n", age)
    return point / look


def step(number, ms, steps=25):
    return f"step {number}\n" + json.dumps({"step": number, "steps": steps, "t_ns": 1, "step_ms": ms})


def gpu(index, sm=83.1, low_s=0.0, **more):
    return {"gpu": index, "uuid": f"GPU-{index}", "sm_active_percent": sm, "utilization_percent": 97, "power_w": 411.6,
            "memory_used_bytes": 61 * GIB, "memory_total_bytes": 140 * GIB, "low_s": low_s, **more}  # fmt: skip


def live_file(look, host, *gpus, age=0.0, for_s=60.0):
    alert = {"below_percent": 5.0, "for_s": for_s}
    aged(look / f"live-{host}.json", json.dumps({"schema": 1, "host": host, "alert": alert, "gpus": gpus}), age)


def event(message, age=12.0, host="n1", index=1, kind="low_gpu"):
    at = time.time_ns() - int(age * 1e9)
    entry = {"t_ns": at, "mono_ns": 1, "host": host, "gpu": index, "uuid": "GPU-1", "kind": kind, "message": message}
    return json.dumps(entry) + "\n"


def only(results):
    (sweep,) = Reader(results).read().sweeps
    (point,) = sweep.running_points
    return point


def text(results, width=80, height=None):
    return [line.text for line in view.page(Reader(results).read(), width, height)]


def freeze(monkeypatch):
    """No time passes from here on, so that a busy machine changes no age."""
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)
    monkeypatch.setattr(time, "time", lambda: now / 1e9)
