"""The name under which Snakemake finds the executor of jobs/slurm/executor: `executor: submitit` in a profile."""

from snakemake_interface_executor_plugins.settings import CommonSettings

from jobs.slurm.executor.executor import Executor
from jobs.slurm.executor.settings import ExecutorSettings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=1,
)
