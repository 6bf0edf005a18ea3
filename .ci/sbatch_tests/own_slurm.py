"""A place for Python tests that configure, start and stop a Slurm by themselves (`--auto-config`).

These tests search all processes of the machine for daemons and end those that they find. So each test runs in a PID
namespace with its own munged, and sees no other Slurm. All processes that it started end with the namespace.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from sbatch_tests.place import Place, Settings

_CONF = """\
ClusterName=tests
SlurmctldHost=localhost
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/run/munge.socket
StateSaveLocation={home}/run/state
SlurmctldPidFile={home}/run/slurmctld.pid
SlurmctldLogFile={home}/run/log/slurmctld.log
SlurmdSpoolDir={home}/run/spool.%n
TmpFS={home}/run/tmp.%n
SlurmdPidFile={home}/run/slurmd.%n.pid
SlurmdLogFile={home}/run/log/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ReturnToService=2
MailProg=/bin/true
SchedulerParameters=sched_interval=2,bf_interval=1,batch_sched_delay=0
NodeName=node1 NodeAddr=127.0.0.1 NodeHostname=localhost Port={node_port} CPUs=4 RealMemory=4000 State=UNKNOWN
PartitionName=primary Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# There is no database: tests that need one fail with both programs. `slurmdbd -V` needs the file.
_DBD_CONF = """\
DbdHost=localhost
SlurmUser=root
AuthType=auth/munge
StorageType=accounting_storage/mysql
PidFile={home}/run/slurmdbd.pid
LogFile={home}/run/log/slurmdbd.log
"""
# The shell stays as the first process of the namespace and reaps orphaned processes.
_FIRST = (
    'munged --force --key-file="$1/key" --log-file="$1/log/munge" --pid-file="$1/pid" --seed-file="$1/seed" '
    '--socket="$1/munge.socket" || exit 70\ncd "$2" && shift 2 && "$@"\nexit $?\n'
)


class OwnSlurm(Place):
    """A place with an initial slurm.conf, which tests change and restore."""

    pytest_options = ("--auto-config",)

    def __init__(self, settings: Settings, number: int) -> None:
        super().__init__(settings, number)
        self.slurm_conf = self.home / "etc" / "slurm.conf"

    def up(self) -> None:
        self.lay_out()
        self.slurm_conf.parent.mkdir()
        self.settle()

    def down(self) -> None:
        """Do nothing: the processes of each test ended with its namespace."""

    def settle(self) -> None:
        """Write a new configuration and remove the state."""
        run = self.home / "run"
        if run.exists():
            shutil.rmtree(run)
        for folder in ("state", "log"):
            (run / folder).mkdir(parents=True)
        (run / "key").write_bytes(os.urandom(64))
        (run / "key").chmod(0o600)
        dbd_conf = self.slurm_conf.with_name("slurmdbd.conf")
        dbd_conf.write_text(_DBD_CONF.format(home=self.home))
        dbd_conf.chmod(0o600)
        self.slurm_conf.write_text(_CONF.format(home=self.home, port=self.port, node_port=self.port + 1))

    def wrapped(self, argv: Sequence[str]) -> Sequence[str]:
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return [*unshare, "sh", "-c", _FIRST, "sh", str(self.home / "run"), str(self.suite / "python"), *argv]
