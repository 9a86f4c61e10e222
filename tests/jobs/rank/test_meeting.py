"""Where the ranks of one host listen while they meet and talk."""

import json
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from nightsweep.jobs.launch import attempt, watchdog
from nightsweep.jobs.rank import worker
from nightsweep.jobs.record.failures import reason_of
from nightsweep.jobs.record.folder import RunFolder

SCRIPT = """
import json, torch
from nightsweep.jobs.rank import worker
worker.join_group(torch.device("cpu"), 60)
total = torch.ones(1000)
torch.distributed.all_reduce(total)
from tests.jobs.rank.test_meeting import listening
found = listening()
torch.distributed.barrier()
print(json.dumps([total[0].item(), found]))
torch.distributed.destroy_process_group()
"""


def listening():
    """Addresses, in hex, at which this process takes connections."""
    own = {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    tables = "".join(Path(f"/proc/self/net/{name}").read_text() for name in ("tcp", "tcp6"))
    lines = [line.split() for line in tables.splitlines()]
    return [line[1].split(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own]


@pytest.mark.slow
def test_ranks_of_one_host_take_connections_from_it_alone():
    held = watchdog.hold_port()
    port = str(held.getsockname()[1])
    shared = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", SCRIPT]
    ranks = [subprocess.Popen(command, env=shared | {"RANK": r}, stdout=subprocess.PIPE) for r in "01"]
    said = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    assert [total for total, _ in said] == [2.0, 2.0]
    assert said[0][1] and {address for _, found in said for address in found} == {"0100007F"}


def test_a_port_that_another_process_took_is_no_fault_of_the_point(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for name, value in {"MASTER_PORT": port, "WORLD_SIZE": "1", "RANK": "0"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(OSError) as caught:
            worker.local_store(timedelta(seconds=5))
    outcome = watchdog.Outcome(*reason_of(caught.value))
    assert outcome.reason == "rank_exception" and attempt.is_passing(outcome, RunFolder(tmp_path))
