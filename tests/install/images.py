"""A system tree in a directory, as `slurmwrap hooks --root` installs into, and a listing of its content."""

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
NodeName=n[0-3] CPUs=4"""  # without a final line end, as some editors leave it
MORE = "PrologFlags=Serial\r\nEpilogSlurmctld=/opt/site/ended\r\n"
SLURM_UID = 64030


def make_image(root: Path) -> Path:
    """Makes a Debian tree whose slurm.conf names hooks of the site."""
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


def read_context(root: Path) -> InstallContext:
    """Reads the installation context as a command does at its start."""
    return hooks_flow.context(root, FILE)


def make_plan(root: Path, **options: Any) -> tuple[InstallContext, InstallationPlan]:
    """Makes the plan of `slurmwrap hooks plan --root`, for Slurm 22.05 unless `release` is given."""
    release = options.pop("release", "22.05")
    options = {
        "config": "/etc/slurmwrap/config.toml",
        "munge": "/usr/bin/munge",
        "command": "/usr/bin/slurmwrap",
        **options,
    }
    return hooks_flow.make(read_context(root), options, "/shared/slurmwrap", None, release)


def install(root: Path, **options: Any) -> None:
    """Does what `slurmwrap hooks install --root` does."""
    context, plan = make_plan(root, **options)
    hooks_flow.install(context, plan, (), 1.0, ())


def uninstall(root: Path, *, purge: bool = False) -> tuple[Path, ...]:
    """Does what `slurmwrap hooks uninstall --root` does; returns the paths that remain."""
    context, _ = make_plan(root) if read_context(root).manifest is None else (read_context(root), None)
    assert context.manifest is not None
    tree = hooks_flow.FileTree(root=root, trusted=frozenset({0, SLURM_UID}))
    system = hooks_flow.System(tree=tree)
    removal = remove.plan_uninstallation(context.manifest, tree)
    manifest = remove.restore_conf(removal, context.manifest, system)
    return remove.remove_installation(removal, manifest, system, purge=purge)


def seen(root: Path) -> dict[str, tuple[int, int, int, str]]:
    """Lists everything below `root`: name -> (mode, uid, gid, digest of the content)."""
    found = {}
    for path in sorted(root.rglob("*")):
        about = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(about.st_mode) else b""
        entry = (stat.S_IMODE(about.st_mode), about.st_uid, about.st_gid, hashlib.sha256(content).hexdigest())
        found[str(path.relative_to(root))] = entry
    return found
