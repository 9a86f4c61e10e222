"""The samplers of a node, as processes: started by the supervisor of its first rank, held still by that rank
(sampler_hold.py) where a block of the control wants to be alone, ended with the rank.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess

from nightsweep.jobs.host import gpus, start
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import write_json
from nightsweep.jobs.record.launch_files import SamplerProcesses
from nightsweep.jobs.sweep.order import Order
from nightsweep.jobs.telemetry.gpu.events import Events

END_S = 5.0


class Started:
    """The running samplers of this node: the host's always, the GPUs' where NVML answers and a rate is asked for."""

    def __init__(self, run_folder: RunFolder, order: Order) -> None:
        self.run_folder = run_folder
        modules = ["nightsweep.jobs.telemetry.host_sampler"] if order.samplers else []
        if modules and order.point().nvml_hz > 0 and gpus.probe()[0]:
            modules.append("nightsweep.jobs.telemetry.gpu.sampler")
        # numpy's and Arrow's pools of threads would cost more than the sampling
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.processes = {module: start.start(module, [str(run_folder.path)], env) for module in modules}
        pids = [process.pid for process in self.processes.values()]
        write_json(run_folder.samplers(socket.gethostname()), SamplerProcesses(pids=pids))

    def end(self) -> None:
        """Let them write what they have, and go; tell of one that did not last so long."""
        host = socket.gethostname()
        for module, process in self.processes.items():
            if process.poll() is not None:
                text = f"`-m {module}` ended by itself with {process.returncode}"
                Events(self.run_folder.events(host), host).add("sampler_lost", text)
        for process in self.processes.values():
            process.terminate()
            process.send_signal(signal.SIGCONT)  # one that is held still would not hear it
        for process in self.processes.values():
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
