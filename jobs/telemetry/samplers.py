"""The samplers of a node, as processes: started by the supervisor of its first rank, held still by that rank
(sampler_hold.py) where a block of the control wants to be alone, ended with the rank.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

from jobs.host import gpus
from jobs.record.folder import RunFolder
from jobs.record.json_files import write_json
from jobs.record.launch_files import SamplerProcesses
from jobs.sweep.order import Order
from jobs.telemetry.gpu.events import Events

END_S = 5.0


class Started:
    """The running samplers of this node: the host's always, the GPUs' where NVML answers and a rate is asked for."""

    def __init__(self, run_folder: RunFolder, order: Order) -> None:
        self.run_folder = run_folder
        modules = ["jobs.telemetry.host_sampler"] if order.samplers else []
        if modules and order.point().nvml_hz > 0 and gpus.probe()[0]:
            modules.append("jobs.telemetry.gpu.sampler")
        commands = [[sys.executable, "-m", module, str(run_folder.path)] for module in modules]
        # numpy's and Arrow's pools of threads would cost more than the sampling
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.processes = [subprocess.Popen(command, env=env, start_new_session=True) for command in commands]
        write_json(run_folder.samplers(socket.gethostname()), SamplerProcesses(pids=[p.pid for p in self.processes]))

    def end(self) -> None:
        """Let them write what they have, and go; tell of one that did not last so long."""
        host = socket.gethostname()
        for process in self.processes:
            if process.poll() is not None:
                text = f"`{' '.join(map(str, process.args[1:3]))}` ended by itself with {process.returncode}"  # type: ignore[index]
                Events(self.run_folder.events(host), host).add("sampler_lost", text)
        for process in self.processes:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # one that is held still would not hear it
        for process in self.processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
