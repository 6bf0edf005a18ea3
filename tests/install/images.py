"""A system in a directory, as `slurmwrap hooks --root` installs into, and what can be seen of it."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

from slurmwrap.install import install_workflow as hooks_flow
from slurmwrap.install import uninstall as remove
from slurmwrap.install.install_workflow import InstallContext
from slurmwrap.install.manifest import FILE
from slurmwrap.install.plan_installation import InstallationPlan

SLURM_CONF = """# a site's own
ClusterName=Lab
SlurmUser=slurm
AuthInfo=cred_expire=120,socket=/run/munge/other.socket
Prolog=/etc/slurm/prolog.sh # health check
Epilog=/etc/slurm/epilog.d/*
Include more.conf
NodeName=n[0-3] CPUs=4"""  # no line end, as editors leave it
MORE = "PrologFlags=Serial\r\nEpilogSlurmctld=/opt/site/ended\r\n"
SLURM_UID = 64030


def make_image(root: Path) -> Path:
    """A Debian with a slurm.conf that names hooks of its own."""
    etc = root / "etc" / "slurm"
    for folder in (etc / "epilog.d", root / "etc" / "systemd" / "system", root / "var" / "lib", root / "usr" / "bin"):
        folder.mkdir(parents=True)
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)
    (etc / "slurm.conf").write_bytes(SLURM_CONF.encode("latin-1"))
    (etc / "slurm.conf").chmod(0o640)
    (etc / "more.conf").write_bytes(MORE.encode())
    (etc / "epilog.d" / "50-clean").write_text("#!/bin/sh\n")
    (root / "etc" / "passwd").write_text(f"root:x:0:0::/:/bin/sh\nslurm:x:{SLURM_UID}:{SLURM_UID}::/:/bin/false\n")
    (root / "etc" / "os-release").write_text("ID=debian\n")
    os.chown(etc / "slurm.conf", SLURM_UID, SLURM_UID)
    return root


def ground_of(root: Path) -> InstallContext:
    """As a command starts."""
    return hooks_flow.context(root, FILE)


def planned(root: Path, **asked: Any) -> tuple[InstallContext, InstallationPlan]:
    """What `slurmwrap hooks plan --root` sees; Slurm 22.05 unless `release` says otherwise."""
    release = asked.pop("release", "22.05")
    asked = {
        "config": "/etc/slurmwrap/config.toml",
        "munge": "/usr/bin/munge",
        "command": "/usr/bin/slurmwrap",
        **asked,
    }
    return hooks_flow.make(ground_of(root), asked, "/shared/slurmwrap", None, release)


def install(root: Path, **asked: Any) -> None:
    """`slurmwrap hooks install --root`."""
    where, plan = planned(root, **asked)
    hooks_flow.install(where, plan, (), 1.0, ())


def uninstall(root: Path, *, purge: bool = False) -> tuple[Path, ...]:
    """`slurmwrap hooks uninstall --root`; what stays."""
    where, _ = planned(root) if ground_of(root).manifest is None else (ground_of(root), None)
    assert where.manifest is not None
    tree = hooks_flow.FileTree(root=root, trusted=frozenset({0, SLURM_UID}))
    system = hooks_flow.System(tree=tree)
    taking = remove.plan_uninstallation(where.manifest, tree)
    manifest = remove.restore_conf(taking, where.manifest, system)
    return remove.remove_installation(taking, manifest, system, purge=purge)


def seen(root: Path) -> dict[str, tuple[int, int, int, str]]:
    """Everything below `root`: name -> (mode, uid, gid, digest of the content)."""
    found = {}
    for path in sorted(root.rglob("*")):
        about = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(about.st_mode) else b""
        about_it = (stat.S_IMODE(about.st_mode), about.st_uid, about.st_gid, hashlib.sha256(content).hexdigest())
        found[str(path.relative_to(root))] = about_it
    return found
