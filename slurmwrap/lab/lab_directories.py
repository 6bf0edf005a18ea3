"""Where everything of a lab lies below its directory. Pure."""

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
        """What is running: the mark by which a directory is known as a lab."""
        return self.root / "lab.json"

    @property
    def etc(self) -> Path:
        """slurm.conf and its companions."""
        return self.root / "etc"

    @property
    def slurm_conf(self) -> Path:
        """SLURM_CONF."""
        return self.etc / "slurm.conf"

    @property
    def site_config(self) -> Path:
        """SLURMWRAP_CONFIG."""
        return self.etc / "slurmwrap" / "config.toml"

    @property
    def munge_key(self) -> Path:
        """The lab's own MUNGE key (0400)."""
        return self.etc / "munge" / "munge.key"

    @property
    def munge_socket(self) -> Path:
        """Reachable for every user."""
        return self.root / "run" / "munge" / "munge.socket"

    @property
    def controller(self) -> Path:
        """SlurmUser's: StateSaveLocation and slurmctld's pid file."""
        return self.root / "slurmctld"

    @property
    def accounting(self) -> Path:
        """SlurmUser's: the database of --accounting."""
        return self.root / "accounting"

    @property
    def database_socket(self) -> Path:
        """SlurmUser's alone, as the directory it is in."""
        return self.accounting / "mariadbd.socket"

    @property
    def logs(self) -> Path:
        """One log per daemon."""
        return self.root / "log"

    @property
    def devices(self) -> Path:
        """GPU files nvidia0, nvidia1, ..."""
        return self.root / "dev"

    @property
    def hooks(self) -> Path:
        """What hookfiles.install writes."""
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
        """site.state_dir (0700, SlurmUser's)."""
        return self.root / "state"

    @property
    def cgroup_name(self) -> str:
        """Name of the lab's own cgroup in each controller; follows from the directory, so a crash cannot lose it."""
        return f"slurmwrap-lab-{hashlib.sha256(str(self.root).encode()).hexdigest()[:10]}"

    def node(self, name: str) -> Path:
        """Everything of one node; `name` may be Slurm's pattern %n."""
        return self.root / "nodes" / name

    def kernel_log(self, name: str) -> Path:
        """The node's simulated kernel log."""
        return self.node(name) / "kmsg"

    def log(self, name: str) -> Path:
        """Log of a daemon: `munged`, `slurmctld`, `slurmdbd`, `reconcile`, or a node's name for its slurmd."""
        return self.logs / f"{name}.log"

    def errors(self, name: str) -> Path:
        """What the daemon wrote to stdout and stderr; early fatal errors appear nowhere else. The reconciler has no
        other log."""
        return self.log(name) if name == "reconcile" else self.logs / f"{name}.err"


def exports(layout: LabDirectories) -> dict[str, str]:
    """The variables by which Slurm's commands and slurmwrap find this lab."""
    return {"SLURM_CONF": str(layout.slurm_conf), "SLURMWRAP_CONFIG": str(layout.site_config)}
