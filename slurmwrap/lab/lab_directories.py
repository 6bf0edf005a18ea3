"""Paths of all files of a lab, below its directory. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LabDirectories:
    """Paths of the lab in `root` (absolute, resolved)."""

    root: Path

    @property
    def state_file(self) -> Path:
        """The state of the lab; a directory with this file is a lab."""
        return self.root / "lab.json"

    @property
    def etc(self) -> Path:
        """Directory of slurm.conf and the other configuration files."""
        return self.root / "etc"

    @property
    def slurm_conf(self) -> Path:
        """slurm.conf, the value of SLURM_CONF."""
        return self.etc / "slurm.conf"

    @property
    def site_config(self) -> Path:
        """slurmwrap's configuration, the value of SLURMWRAP_CONFIG."""
        return self.etc / "slurmwrap" / "config.toml"

    @property
    def munge_key(self) -> Path:
        """The lab's own MUNGE key (0400)."""
        return self.etc / "munge" / "munge.key"

    @property
    def munge_socket(self) -> Path:
        """The MUNGE socket, which every user can reach."""
        return self.root / "run" / "munge" / "munge.socket"

    @property
    def controller(self) -> Path:
        """Directory of StateSaveLocation and slurmctld's pid file, owned by SlurmUser."""
        return self.root / "slurmctld"

    @property
    def accounting(self) -> Path:
        """Directory of the database of --accounting, owned by SlurmUser."""
        return self.root / "accounting"

    @property
    def database_socket(self) -> Path:
        """The database's socket; only SlurmUser can enter its directory."""
        return self.accounting / "mariadbd.socket"

    @property
    def logs(self) -> Path:
        """Directory with one log per daemon."""
        return self.root / "log"

    @property
    def devices(self) -> Path:
        """Directory of the GPU files nvidia0, nvidia1, ..."""
        return self.root / "dev"

    @property
    def hooks(self) -> Path:
        """Directory of the hooks that host/hook_archive.py writes."""
        return self.root / "hooks"

    @property
    def spool(self) -> Path:
        """site.spool (mode 1733)."""
        return self.root / "spool"

    @property
    def published(self) -> Path:
        """site.published."""
        return self.root / "published"

    @property
    def state(self) -> Path:
        """site.state_dir (mode 0700, owned by SlurmUser)."""
        return self.root / "state"

    @property
    def cgroup_name(self) -> str:
        """Name of the lab's cgroup in each controller.

        It is a digest of the directory, so that it is known after a crash.
        """
        return f"slurmwrap-lab-{hashlib.sha256(str(self.root).encode()).hexdigest()[:10]}"

    def node(self, name: str) -> Path:
        """Return the directory of one node; `name` may be Slurm's pattern %n."""
        return self.root / "nodes" / name

    def kernel_log(self, name: str) -> Path:
        """Return the node's simulated kernel log."""
        return self.node(name) / "kmsg"

    def log(self, name: str) -> Path:
        """Return a daemon's log: `munged`, `slurmctld`, `slurmdbd`, `reconcile`, or a node's name for its slurmd."""
        return self.logs / f"{name}.log"

    def errors(self, name: str) -> Path:
        """Return the file with a daemon's stdout and stderr; only this file has early fatal errors.

        The reconciler has no other log.
        """
        return self.log(name) if name == "reconcile" else self.logs / f"{name}.err"


def exports(layout: LabDirectories) -> dict[str, str]:
    """Return the environment variables with which Slurm's commands and slurmwrap find this lab."""
    return {"SLURM_CONF": str(layout.slurm_conf), "SLURMWRAP_CONFIG": str(layout.site_config)}
