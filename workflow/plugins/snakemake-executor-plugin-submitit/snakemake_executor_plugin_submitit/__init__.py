"""Snakemake's executor plugin on submitit: jobs go out as arrays, one query watches them all, nothing is lost.

Each job becomes one element of a Slurm job array, whose batch step runs Snakemake's own command for that job.
"""

from snakemake_interface_executor_plugins.settings import CommonSettings

from snakemake_executor_plugin_submitit.executor import Executor
from snakemake_executor_plugin_submitit.settings import ExecutorSettings

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
