"""Makes stand-ins of Snakemake's plugins for clusters: dry runs need no more than their names and settings."""

from pathlib import Path

EXECUTOR = """
from dataclasses import dataclass, field
from typing import Optional
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

common_settings = CommonSettings(non_local_exec=True, implies_no_shared_fs=False, job_deploy_sources=False)

class Executor(RemoteExecutor):
    pass

@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    {settings}
"""
SETTINGS = {
    "slurm": ("init_seconds_before_status_checks",),
    "cluster_generic": ("submit_cmd", "status_cmd", "cancel_cmd"),
}


def write(folder: Path) -> None:
    """A package for each plugin of the profiles in `folder`, which belongs on PYTHONPATH."""
    for name, settings in SETTINGS.items():
        package = folder / f"snakemake_executor_plugin_{name}"
        package.mkdir(parents=True)
        lines = "\n    ".join(
            f"{each}: Optional[str] = field(default=None, metadata={{'help': 'x'}})" for each in settings
        )
        (package / "__init__.py").write_text(EXECUTOR.format(settings=lines))
