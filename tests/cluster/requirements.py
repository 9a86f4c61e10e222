"""What a Slurm on this one host needs of it, and whether it is there."""

import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "srun", "munged", "unshare")
ACCOUNTING_PROGRAMS = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db")
NAMESPACES = ("unshare", "--uts", "--mount", "--propagation", "private")
FOREIGN = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_")


def available(accounting: bool = False) -> str | None:
    """Why no cluster can be started here, in one line, or None."""
    if os.geteuid() != 0:
        return "a Slurm cluster needs root"
    path = environment()["PATH"]
    programs = PROGRAMS + (ACCOUNTING_PROGRAMS if accounting else ())
    if missing := [name for name in programs if not shutil.which(name, path=path)]:
        return f"not installed: {', '.join(missing)} (tests/install.sh)"
    if accounting and not any(Path("/usr").glob("lib*/**/slurm*/accounting_storage_mysql.so")):
        return "not installed: slurm-wlm-mysql-plugin (tests/install.sh)"
    trial = [*NAMESPACES, "sh", "-c", "hostname n0 && mount --bind /etc/hosts /etc/hosts"]
    done = subprocess.run(trial, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"namespaces are not permitted: {' '.join(done.stderr.split())}"
    with tempfile.TemporaryDirectory(prefix="ns-", dir="/tmp") as folder:
        try:
            os.mknod(f"{folder}/gpu", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except OSError as error:
            return f"device nodes are not permitted: {error}"
    return None


def environment() -> dict[str, str]:
    """This process's variables without those of another Slurm, and with the folders of daemons on the PATH."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return variables | {"PATH": variables.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"}
