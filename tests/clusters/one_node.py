"""SLURM on one node, for this machine alone: set up in a folder, started, stopped at the end. Used by test_slurm.py.

From Debian's packages slurm-wlm and munge. Made-up GPUs are files, whose numbers SLURM hands to jobs as it does those
of real ones. No control groups, so that it runs in containers too: processes of a job are told by their parents.
"""

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.orphans import die_with_parent

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
LIMIT_S = 60

CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
GresTypes=gpu
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory={memory_mb} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes=node1 Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Cluster:
    """A running cluster. `environment` has what its programs need."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": f"{self.folder}/bin:{PATH}",
            "SPECPROOF_GPU_LOCKS": str(self.folder / "locks"),
        }  # fmt: skip

    def call(self, *words: str) -> str:
        """Output of one of SLURM's programs."""
        done = subprocess.run(
            words, env=os.environ | self.environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}\n{self.logs()}"
        return done.stdout

    def jobs(self) -> list[dict[str, str]]:
        """What SLURM knows of every job, ended ones too: its comment, state, time limit, resources."""
        rows = self.call("scontrol", "show", "job", "--oneliner").splitlines()
        return [dict(word.partition("=")[::2] for word in row.split()) for row in rows if row.startswith("JobId=")]

    def logs(self) -> str:
        """The ends of the programs' logs, for the message of a failure."""
        return "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*.log")))


def missing() -> list[str]:
    """Programs that are not installed."""
    return [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _configure(folder: Path, cores: int, memory_mb: int, gpus: int) -> None:
    control_port, node_port = _free_ports(2)
    for name in ("state", "spool", "bin"):
        (folder / name).mkdir()
    for number in range(gpus):
        (folder / f"gpu{number}").symlink_to("/dev/null")  # any device will do
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{gpus - 1}]\n")
    filled = CONFIGURATION.format(
        host=socket.gethostname(), user=getpass.getuser(), folder=folder, control_port=control_port,
        node_port=node_port, cores=cores, memory_mb=memory_mb, gpus=gpus,
    )  # fmt: skip
    (folder / "slurm.conf").write_text(filled)
    # The plugin starts a step without SLURM_CONF, as is right where the file lies at its usual place.
    srun = folder / "bin" / "srun"
    srun.write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {shutil.which("srun", path=PATH)} "$@"\n')
    srun.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)


@contextmanager
def _running(cluster: Cluster, *command: str) -> Iterator[subprocess.Popen]:
    """A program in the foreground until the block ends; `command[0]`.out keeps what it says."""
    with (cluster.folder / f"{command[0]}.out.log").open("w") as out:
        process = subprocess.Popen(
            command, env=os.environ | cluster.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # a killed test leaves no cluster behind; no threads here
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(cluster: Cluster, happened, what: str) -> None:
    limit = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < limit, f"{what}:\n{cluster.logs()}"
        time.sleep(0.2)


def _node_state(cluster: Cluster) -> str:
    done = subprocess.run(
        ["sinfo", "--noheader", "--format=%T"], env=os.environ | cluster.environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return done.stdout.strip()


@contextmanager
def one_node(folder: Path, cores: int, memory_mb: int, gpus: int) -> Iterator[Cluster]:
    """A cluster of one node that is ready for jobs; none of its processes outlives the block.

    Args:
        folder: empty, on a path that only its owner can write. cores, memory_mb, gpus: as told to SLURM, whatever the
            machine has.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends the tests so ends the jobs as well
    _configure(folder, cores, memory_mb, gpus)
    cluster = Cluster(folder)
    munge = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("key-file", "pid-file", "log-file")]
    munge += [f"--seed-file={folder}/munge.seed", f"--socket={folder}/munge.sock", "--num-threads=2"]
    with ExitStack() as stack:
        stack.enter_context(_running(cluster, "munged", "--foreground", "--force", *munge))
        _wait(cluster, (folder / "munge.sock").exists, "munged did not start")
        started = [stack.enter_context(_running(cluster, "slurmctld", "-D"))]
        started += [stack.enter_context(_running(cluster, "slurmd", "-D", "-N", "node1"))]
        ready = lambda: _node_state(cluster) == "idle" or any(each.poll() is not None for each in started)  # noqa: E731
        _wait(cluster, ready, "the node did not come up")
        assert _node_state(cluster) == "idle", cluster.logs()
        try:
            yield cluster
        finally:
            cluster.call("scancel", "--full", "--signal=KILL", "--user", getpass.getuser())
            cluster.call("scancel", "--user", getpass.getuser())
            _wait(cluster, lambda: not cluster.call("squeue", "--noheader").strip(), "a job did not end")
